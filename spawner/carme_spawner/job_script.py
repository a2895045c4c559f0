"""The job script: a file template filled with values from a whitelist, each quoted."""

import shlex
from pathlib import Path

import jinja2

from carme.units import format_slurm_time
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


def job_script(
    *,
    session: str,
    partition: str,
    cpus: int,
    memory_mb: int,
    seconds: int,
    gpus: int,
    gpu_type: str,
    account: str = "",
    qos: str = "",
    reservation: str = "",
    image: Path,
    size_bytes: int = 0,
    node_cache: Path | None = None,
    apptainer: Path,
    gpu_flag: str,
    binds: tuple[str, ...],
    folder: Path,
    nodes: int = 1,
    slurm_bin: Path | None = None,
    template: str = "job.sh",
) -> str:
    """The text for sbatch; names have been checked against Slurm, numbers are numbers.

    Only a published image has `size_bytes`. Its file has a plain name, by which the catalogue knows
    that it is in use; a user's own may be called anything, and stays out of sbatch's options.

    The template `task.sh` gives the script with which tasks of `srun` enter the container.
    """
    return _environment.get_template(template).render(
        job_name=f"carme-{session}",
        partition=partition,
        cpus=cpus,
        memory_mb=memory_mb,
        time=format_slurm_time(seconds),
        # Slurm may send it a minute early, so that a session of a minute would be told to end
        # before it has started; a short one is told at its end only.
        notice_seconds=NOTICE_SECONDS if seconds >= SHORT_SECONDS else 0,
        gpus=gpus,
        gpu_type=gpu_type,
        account=account,
        qos=qos,
        reservation=reservation,
        image=image,
        size_bytes=size_bytes,
        cached=node_cache / image.name if node_cache and size_bytes else "",
        apptainer=apptainer,
        env_prefix="SINGULARITYENV" if apptainer.name == "singularity" else "APPTAINERENV",
        gpu_flag=gpu_flag,
        binds=binds,
        folder=folder,
        launcher=folder / "launcher.py",
        nodes=nodes,
        slurm_path=f"{slurm_bin}:" if slurm_bin else "",
    )
