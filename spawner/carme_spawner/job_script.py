"""The job script: a file template filled with values from a whitelist, each quoted."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import jinja2

from carme.requests.resource_request import ResourceRequest
from carme_spawner.messages import NOTICE_SECONDS

SHORT_SECONDS = 300

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
    """The container of a session, and the paths that it needs on its nodes."""

    session: str
    image: Path
    size_bytes: int = 0
    """Of a published image; 0 for a user's own, whose file may have any name: such a name does not
    go into an sbatch option."""
    node_cache: Path | None = None
    apptainer: Path
    gpu_flag: str = ""
    binds: tuple[str, ...] = ()
    folder: Path
    """The session's folder below the user's home."""
    slurm_bin: Path | None = None


def job_script(
    request: ResourceRequest, container: SessionContainer, template: str = "job.sh"
) -> str:
    """The text for sbatch; with the template `task.sh` the script of `srun`'s tasks."""
    apptainer, cache, image = container.apptainer, container.node_cache, container.image
    return _environment.get_template(template).render(
        request=request,
        container=container,
        # Slurm may send the signal a minute early, which would end a session of a minute before
        # it has started. A short session gets the signal at its end only.
        notice_seconds=NOTICE_SECONDS if request.seconds >= SHORT_SECONDS else 0,
        cached=cache / image.name if cache and container.size_bytes else "",
        env_prefix="SINGULARITYENV" if apptainer.name == "singularity" else "APPTAINERENV",
        slurm_path=f"{container.slurm_bin}:" if container.slurm_bin else "",
    )
