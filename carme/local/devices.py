"""The GPUs' device files, so that Slurm can hand them out and hold jobs to their own.

Where the machine has no GPU these are files without a driver behind them, which is all that
Slurm's GRES and device cgroups need.
"""

import json
import os
import stat
from pathlib import Path

from carme.local.files import write
from carme.local.layout import Layout

_NVIDIA_MAJOR = 195


def _record(layout: Layout) -> Path:
    return layout.state / "devices.json"


def ensure(layout: Layout, dev: Path = Path("/dev")) -> bool:
    """/dev/nvidiaN for every GPU of every node; True if one was made."""
    file = _record(layout)
    mine = set(json.loads(file.read_text(encoding="ascii"))) if file.exists() else set()
    wanted = [n for node in layout.config.local.nodes for n in layout.minors(node)]
    absent = [n for n in wanted if layout.virtual and not (dev / f"nvidia{n}").exists()]
    if not absent:
        return False
    write(file, json.dumps(sorted({*mine, *(f"nvidia{n}" for n in absent)})))
    for number in absent:
        path = dev / f"nvidia{number}"
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, number))
        path.chmod(0o666)
    return True


def remove(layout: Layout, dev: Path = Path("/dev")) -> None:
    """Remove the files that `ensure` made."""
    file = _record(layout)
    for name in json.loads(file.read_text(encoding="ascii")) if file.exists() else ():
        (dev / name).unlink(missing_ok=True)
