"""Copies of published images on a node's own disk, so that sessions start without the network.

Filled by root (a prolog, a timer), never by users: whoever can write here decides what others run.
"""

import os
import shutil
from pathlib import Path

from carme.errors import UnavailableError
from carme.images.catalogue import Catalogue, file_digest
from carme.units import format_bytes
from carme_containers.build_log import Progress
from carme_containers.images_in_use import open_files

KEEP_FREE = 0.1


def fill(catalogue: Catalogue, folder: Path, progress: Progress) -> list[Path]:
    """Copy what is offered to `folder` and drop what no longer is; the copies that are there now.

    Defaults come first; an image that would leave less than a tenth of the disk free is left out.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder.chmod(0o755)
    offered = sorted(catalogue.offered(), key=lambda image: not catalogue.is_default(image))
    wanted = {image.file for image in offered}
    busy = open_files(folder)
    for path in folder.glob("*.sif"):
        if path.name not in wanted | busy:
            progress(f"{path.name}: no longer published, removed")
            path.unlink()
    there = []
    for image in offered:
        target = folder / image.file
        if target.exists() and target.stat().st_size == image.size_bytes:
            there.append(target)
            continue
        disk = shutil.disk_usage(folder)
        if disk.free - image.size_bytes < KEEP_FREE * disk.total:
            progress(f"{image.id}: {format_bytes(image.size_bytes)} do not fit, left out")
            continue
        progress(f"{image.id}: copying {format_bytes(image.size_bytes)}")
        draft = folder / f".{image.file}.{os.getpid()}"
        try:
            shutil.copyfile(catalogue.path(image), draft)
            if file_digest(draft) != image.digest:
                raise UnavailableError(f"{image.id} arrived damaged in {folder}")
            draft.chmod(0o644)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        there.append(target)
    return there
