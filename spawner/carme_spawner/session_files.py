"""The job script of a session, and the files in its folder, secrets included."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from carme.config import Config
from carme.helper.models import LOG_FILE
from carme_spawner.job_script import SessionContainer, job_script
from carme_spawner.options import SessionOptions

LABEXTENSION = "carme-session"


def job_scripts(
    config: Config,
    options: SessionOptions,
    *,
    session: str,
    home: Path,
    image: Path,
    size_bytes: int,
    project: Path | None,
) -> tuple[str, str]:
    """The job script, and the script of tasks on further nodes: empty for a single node."""
    settings = config.session
    container = SessionContainer(
        session=session,
        image=image,
        size_bytes=size_bytes,
        node_cache=config.images.node_cache,
        apptainer=config.images.apptainer or Path("apptainer"),
        gpu_flag=f"--{settings.gpu_flag}" if settings.gpu_flag else "",
        binds=(*settings.binds, *([str(project)] if project else [])),
        folder=home / ".carme/sessions" / session,
        slurm_bin=config.slurm.bin,
    )
    task = job_script(options, container, "task.sh") if options.nodes > 1 else ""
    return job_script(options, container), task


def session_files(
    environment: Mapping[str, str], base_url: str, options: Sequence[str], task: str = ""
) -> dict[str, str]:
    """File name to text. `task` is the script of tasks on further nodes; empty without any."""
    secret = {
        "environment": dict(environment),
        "hub_api_url": environment["JUPYTERHUB_API_URL"],
        "base_url": base_url,
        "command": ["jupyterhub-singleuser", *options],
        # Written by the launcher: these are not secret.
        "files": _jupyter_files(),
    }
    texts = {
        LOG_FILE: "",  # empties the log of an earlier session
        "session.json": json.dumps(secret),
        "launcher.py": _source("launcher.py"),
    }
    if task:
        texts |= {
            "task.sh": task,
            "relay.py": _source("relay.py"),
            "srun": _source("srun.py"),
        }
    return texts


def _jupyter_files() -> dict[str, str]:
    """The server extension, and its half in JupyterLab as a prebuilt extension."""
    package: dict[str, Any] = {
        "name": LABEXTENSION,
        "version": "1.0.0",
        "description": "How much time the session has left",
        "jupyterlab": {
            "extension": True,
            "_build": {"load": "static/time_left.js", "extension": "./extension"},
        },
    }
    return {
        "config/jupyter_server_config.py": _source("inside/jupyter_server_config.py"),
        "python/carme_session.py": _source("inside/carme_session.py"),
        f"share/labextensions/{LABEXTENSION}/package.json": json.dumps(package),
        f"share/labextensions/{LABEXTENSION}/static/time_left.js": _source("inside/time_left.js"),
    }


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
