"""Device files of virtual GPUs, so that Slurm can allocate them and limit jobs to their own.

The files have no driver: Slurm's GRES and device cgroups need only the files. All clusters on a
machine share them. Each cluster records which files it uses, and the last one removes them.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from carme.local.layout import Layout
from carme.system.files import locked, write

_NVIDIA_MAJOR = 195
DEV = Path("/dev")
NOTES = Path("/run/carme-devices")
"""The records of which cluster uses which files. A reboot removes them and the files."""
_CREATED = "made"


def ensure(layout: Layout, dev: Path = DEV, notes: Path = NOTES) -> bool:
    """Create /dev/nvidiaN for every GPU of every node; True if one was missing."""
    if not layout.virtual:
        return False
    numbers = [n for node in layout.config.local.nodes for n in layout.minors(node)]
    with _locked(notes):
        write(notes / _name(layout), json.dumps([f"nvidia{n}" for n in numbers]))
        absent = [n for n in numbers if not (dev / f"nvidia{n}").exists()]
        if absent:
            created = {*_listed(notes / _CREATED), *(f"nvidia{n}" for n in absent)}
            write(notes / _CREATED, json.dumps(sorted(created)))
        for number in absent:
            path = dev / f"nvidia{number}"
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, number))
            path.chmod(0o666)
    return bool(absent)


def remove(layout: Layout, dev: Path = DEV, notes: Path = NOTES) -> None:
    """Remove the files that `ensure` created, unless another cluster uses them."""
    with _locked(notes):
        (notes / _name(layout)).unlink(missing_ok=True)
        used = {name for note in notes.glob("of-*") for name in _listed(note)}
        created = set(_listed(notes / _CREATED))
        for name in created - used:
            (dev / name).unlink(missing_ok=True)
        if used:
            write(notes / _CREATED, json.dumps(sorted(created & used)))
        else:
            shutil.rmtree(notes)


def _name(layout: Layout) -> str:
    return "of-" + str(layout.dir).strip("/").replace("/", "-")


def _listed(file: Path) -> list[str]:
    names: list[str] = json.loads(file.read_text(encoding="ascii")) if file.exists() else []
    return names


@contextmanager
def _locked(notes: Path) -> Iterator[None]:
    with locked(notes.with_suffix(".lock")):
        notes.mkdir(exist_ok=True)
        yield
