"""Which published files running and queued sessions still need."""

import os
import re
import subprocess
from pathlib import Path

from carme.config import Config
from carme.errors import UnavailableError

# The spawner writes this into the comment of each session's job.
_COMMENT = re.compile(r"\bcarme-image=([0-9A-Za-z][0-9A-Za-z._-]*\.sif)")


def files_in_use(config: Config, proc: Path = Path("/proc")) -> frozenset[str]:
    """Names of image files that a job in Slurm or a process of this machine uses."""
    return frozenset(files_in_jobs(_job_comments(config)) | open_files(config.images.folder, proc))


def files_in_jobs(comments: str) -> set[str]:
    """The image files named in the comments of jobs."""
    return set(_COMMENT.findall(comments))


def open_files(folder: Path, proc: Path = Path("/proc")) -> set[str]:
    """Files of `folder` that a process on this machine has open; needs root to see them all."""
    found = set()
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            target = link.readlink()
        except OSError:
            continue  # the process ended, or is not ours to look at
        if target.parent == folder:
            found.add(target.name)
    return found


def _job_comments(config: Config) -> str:
    slurm = config.slurm
    environ = dict(os.environ)
    if slurm.conf:
        environ["SLURM_CONF"] = str(slurm.conf)
    program = str(slurm.bin / "squeue") if slurm.bin else "squeue"
    command = [program, "--all", "--noheader", "--format=%k"]
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environ,
            timeout=slurm.timeout_seconds + 5,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown(str(error)) from None
    if run.returncode:
        raise _unknown((run.stderr.strip().splitlines() or ["no message"])[-1])
    return run.stdout


def _unknown(why: str) -> UnavailableError:
    return UnavailableError(
        f"Slurm does not say which images are in use: {why}",
        "try again later, or --assume-unused if you know that nothing runs",
    )
