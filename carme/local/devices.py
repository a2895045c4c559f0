"""The GPUs' device files, so that Slurm can hand them out and hold jobs to their own.

Where the machine has no GPU these are files without a driver behind them, which is all that
Slurm's GRES and device cgroups need. Clusters on one machine count their GPUs alike and share the
files: each says which it uses, and the last one removes them.
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
"""Who uses which file. Gone after a reboot, like the files."""
_MADE = "made"


def ensure(layout: Layout, dev: Path = DEV, notes: Path = NOTES) -> bool:
    """/dev/nvidiaN for every GPU of every node; True if one was made."""
    if not layout.virtual:
        return False
    numbers = [n for node in layout.config.local.nodes for n in layout.minors(node)]
    with _alone(notes):
        write(notes / _name(layout), json.dumps([f"nvidia{n}" for n in numbers]))
        absent = [n for n in numbers if not (dev / f"nvidia{n}").exists()]
        if absent:
            made = {*_listed(notes / _MADE), *(f"nvidia{n}" for n in absent)}
            write(notes / _MADE, json.dumps(sorted(made)))
        for number in absent:
            path = dev / f"nvidia{number}"
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, number))
            path.chmod(0o666)
    return bool(absent)


def remove(layout: Layout, dev: Path = DEV, notes: Path = NOTES) -> None:
    """Remove the files that `ensure` made, unless another cluster uses them."""
    with _alone(notes):
        (notes / _name(layout)).unlink(missing_ok=True)
        used = {name for note in notes.glob("of-*") for name in _listed(note)}
        made = set(_listed(notes / _MADE))
        for name in made - used:
            (dev / name).unlink(missing_ok=True)
        if used:
            write(notes / _MADE, json.dumps(sorted(made & used)))
        else:
            shutil.rmtree(notes)


def _name(layout: Layout) -> str:
    return "of-" + str(layout.dir).strip("/").replace("/", "-")


def _listed(file: Path) -> list[str]:
    names: list[str] = json.loads(file.read_text(encoding="ascii")) if file.exists() else []
    return names


@contextmanager
def _alone(notes: Path) -> Iterator[None]:
    with locked(notes.with_suffix(".lock")):
        notes.mkdir(exist_ok=True)
        yield
