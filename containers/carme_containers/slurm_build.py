"""A build as a Slurm job: on a compute node, in the queue, with the resources it asked for."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from carme.config import Config
from carme.errors import MissingError, UnavailableError

CPUS = 2
MEMORY = "4G"
MINUTES = 120


def open_private_tmp(tmp: Path = Path("/tmp")) -> None:  # noqa: S108
    """In a job of root's, let the build user into the job's own /tmp; elsewhere do nothing.

    Slurm can give each job a /tmp that only its user may enter. Apptainer wants to write there.
    """
    closed = tmp.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0 and "SLURM_JOB_ID" in os.environ and closed:
        tmp.chmod(0o1777)


def build_in_job(
    config: Config, arguments: Sequence[str], partition: str | None, account: str | None
) -> None:
    """Run `carme images ARGUMENTS` in a job and wait; its output comes through.

    The job builds into the same cache folder as we would, so that folder has to be on a file
    system that the node shares.
    """
    name = "srun"
    srun = str(config.slurm.bin / name) if config.slurm.bin else shutil.which(name)
    if not srun:
        raise MissingError("srun is not on PATH", "set slurm.bin, or build without --slurm")
    command = [srun, "--job-name=carme-images", "--ntasks=1", f"--cpus-per-task={CPUS}"]
    command += [f"--mem={MEMORY}", f"--time={MINUTES}", "--unbuffered"]
    if partition:
        command.append(f"--partition={partition}")
    if account:
        command.append(f"--account={account}")
    environ = dict(os.environ)
    if config.slurm.conf:
        environ["SLURM_CONF"] = str(config.slurm.conf)
    run = subprocess.run(
        [*command, sys.executable, "-m", "carme.cli", "images", *arguments],
        check=False,
        env=environ,
        stdin=subprocess.DEVNULL,
        cwd="/",  # ours may not be there on the node
    )
    if run.returncode:
        raise UnavailableError("the build in Slurm failed; its messages are above")
