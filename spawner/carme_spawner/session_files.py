"""The job script of a session, and the files in its folder, secrets included.

The script is a template filled with values from a whitelist, each quoted.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from carme.config import Config
from carme.helper.models import LOG_FILE
from carme.requests.resource_request import ResourceRequest
from carme_spawner.messages import NOTICE_SECONDS

SHORT_SECONDS = 300
NAME_PREFIX = "carme-"
"""A session's job is named by this and the session."""
JUPYTER_FILES = {
    "bin/carme-tcp-kernel": "tcp_kernel.py",
    "config/jupyter_config.py": "jupyter_config.py",
    "config/jupyter_server_config.py": "jupyter_server_config.py",
    "python/carme_session.py": "carme_session.py",
    "share/labextensions/carme-session/package.json": "package.json",
    "share/labextensions/carme-session/static/time_left.js": "time_left.js",
}
"""Jupyter's settings, the server extension, the prebuilt JupyterLab extension, and the program for
kernels that know only TCP: path in the session to our file."""
KERNEL_CONFIG = "ipython_kernel_config.py"
"""Settings of IPython kernels, which the job script binds into the container."""

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme_spawner", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 (a shell script; every value is quoted or of a fixed form)
)
_environment.filters["quote"] = lambda value: shlex.quote(str(value))


@dataclass(frozen=True, kw_only=True)
class SessionContainer:
    """The container of one session."""

    session: str
    submission: str
    """A random number, by which the hub recognises the job that it submitted."""
    image: Path
    size_bytes: int = 0
    """Of a published image; 0 for a user's own, whose file may have any name: such a name does not
    go into an sbatch option."""
    folder: Path
    """The session's folder below the user's home."""
    project: Path | None = None
    """The project folder that the session works in."""


def job_script(
    config: Config, request: ResourceRequest, container: SessionContainer, template: str = "job.sh"
) -> str:
    """The text for sbatch; with the template `task.sh` the script of `srun`'s tasks."""
    settings, cache = config.session, config.images.node_cache
    apptainer = config.images.apptainer or Path("apptainer")
    return _environment.get_template(template).render(
        request=request,
        container=container,
        name_prefix=NAME_PREFIX,
        kernel_config=KERNEL_CONFIG,
        apptainer=apptainer,
        gpu_flag=f"--{settings.gpu_flag}" if settings.gpu_flag else "",
        binds=[*settings.binds, *([container.project] if container.project else [])],
        # Slurm may send the signal a minute early, which would end a session of a minute before
        # it has started. A short session gets the signal at its end only.
        notice_seconds=NOTICE_SECONDS if request.seconds >= SHORT_SECONDS else 0,
        cached=cache / container.image.name if cache and container.size_bytes else "",
        env_prefix="SINGULARITYENV" if apptainer.name == "singularity" else "APPTAINERENV",
        slurm_path=f"{config.slurm.bin}:" if config.slurm.bin else "",
    )


def session_files(
    environment: Mapping[str, str],
    base_url: str,
    options: Sequence[str],
    start_seconds: float,
    certificate: str,
    task: str = "",
) -> dict[str, str]:
    """File name to text. `certificate` is the session's with its key. `task` is the script of tasks
    on further nodes; empty without any."""
    secret = {
        "environment": dict(environment),
        "hub_api_url": environment["JUPYTERHUB_API_URL"],
        "base_url": base_url,
        "command": ["jupyterhub-singleuser", *options],
        "start_seconds": start_seconds,
        # The launcher writes these; they are not secret.
        "files": {path: _source(f"inside/{name}") for path, name in JUPYTER_FILES.items()},
    }
    texts = {
        LOG_FILE: "",  # empties the log of an earlier session
        "session.json": json.dumps(secret),
        "launcher.py": _source("launcher.py"),
        "server.pem": certificate,
        KERNEL_CONFIG: _source(f"inside/{KERNEL_CONFIG}"),
    }
    if task:
        texts |= {"task.sh": task, "relay.py": _source("relay.py"), "srun": _source("srun.py")}
    return texts


def _source(name: str) -> str:
    return files("carme_spawner").joinpath(name).read_text(encoding="utf-8")


def idle_options(hours: float) -> list[str]:
    """Options of jupyterhub-singleuser that end kernels, terminals and session when idle."""
    seconds = round(hours * 3600)
    if not seconds:
        return []
    return [
        f"--ServerApp.shutdown_no_activity_timeout={seconds}",
        f"--MappingKernelManager.cull_idle_timeout={seconds}",
        "--MappingKernelManager.cull_connected=True",
        "--MappingKernelManager.cull_interval=60",
        f"--TerminalManager.cull_inactive_timeout={seconds}",
        "--TerminalManager.cull_interval=60",
    ]
