"""Image files on nodes: which ones sessions use, and copies on a node's own disk."""

import os
import re
import shutil
from pathlib import Path

from carme.config import Config
from carme.errors import CarmeError, UnavailableError
from carme.images.catalogue import Catalogue, file_digest
from carme.system.programs import ProgressCallback, execute
from carme.units import format_bytes

# The spawner writes this into the comment of each session's job.
_COMMENT = re.compile(r"\bcarme-image=([0-9A-Za-z][0-9A-Za-z._-]*\.sif)")


def files_in_use(config: Config, proc: Path = Path("/proc")) -> frozenset[str]:
    """Names of image files that a Slurm job or a process on this machine uses."""
    return frozenset(files_in_jobs(_job_comments(config)) | open_files(config.images.folder, proc))


def files_in_jobs(comments: str) -> set[str]:
    """The image files in the comments of jobs."""
    return set(_COMMENT.findall(comments))


def open_files(folder: Path, proc: Path = Path("/proc")) -> set[str]:
    """Files of `folder` that processes on this machine have open; only root sees all of them."""
    names = set()
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            target = link.readlink()
        except OSError:
            continue  # the process has ended, or belongs to another user
        if target.parent == folder:
            names.add(target.name)
    return names


def _job_comments(config: Config) -> str:
    slurm = config.slurm
    environ = dict(os.environ)
    if slurm.conf:
        environ["SLURM_CONF"] = str(slurm.conf)
    program = str(slurm.bin / "squeue") if slurm.bin else "squeue"
    command = [program, "--all", "--noheader", "--format=%k"]
    try:
        result = execute(command, env=environ, timeout_seconds=slurm.timeout_seconds + 5)
        problem = result.last_line if result.returncode else ""
    except CarmeError as error:
        problem = error.message
    if problem:
        raise UnavailableError(
            f"Slurm does not say which images are in use: {problem}",
            "try again later, or --assume-unused if you know that no session runs",
        )
    return result.stdout


MIN_FREE_FRACTION = 0.1


def copy_images(catalogue: Catalogue, folder: Path, progress: ProgressCallback) -> list[Path]:
    """Copy the offered images to `folder` and remove others; returns the copies.

    Only root may write there: the copies decide what users run. Defaults come first; an image that
    would leave less than a tenth of the disk free is left out.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder.chmod(0o755)
    offered = sorted(catalogue.offered(), key=lambda image: not catalogue.is_default(image))
    needed = {image.file for image in offered} | open_files(folder)
    for path in folder.glob("*.sif"):
        if path.name not in needed:
            progress(f"{path.name}: no longer published, removed")
            path.unlink()
    copies = []
    for image in offered:
        target = folder / image.file
        if target.exists() and target.stat().st_size == image.size_bytes:
            copies.append(target)
            continue
        disk = shutil.disk_usage(folder)
        if disk.free - image.size_bytes < MIN_FREE_FRACTION * disk.total:
            progress(f"{image.id}: {format_bytes(image.size_bytes)} do not fit, skipped")
            continue
        progress(f"{image.id}: copying {format_bytes(image.size_bytes)}")
        draft = folder / f".{image.file}.{os.getpid()}"
        try:
            shutil.copyfile(catalogue.path(image), draft)
            if file_digest(draft) != image.digest:
                raise UnavailableError(f"the copy of {image.id} in {folder} is damaged")
            draft.chmod(0o644)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        copies.append(target)
    return copies
