"""The cluster's folder and its sudo rule go: what `up` made, and nothing beside it."""

import re
import shutil
from pathlib import Path

from carme.errors import InputError
from carme.local import render
from carme.local.layout import Layout
from carme.system.programs import run

SITE_FILE = "etc/site.toml"
"""What `up` was given."""
INSTALL_LOG = "log/install.log"
"""The first that `up` writes."""
_CONFIG = re.compile(r"--config (\S+)")
_FOLDERS = ("etc", "images", "run", "state", "log")
"""The mark goes last: a purge that was interrupted can be taken up again."""


def check(layout: Layout) -> None:
    """InputError for a folder that is no cluster's: it may hold anything."""
    folder = layout.dir
    ours = any((folder / name).exists() for name in (SITE_FILE, INSTALL_LOG))
    if folder.exists() and not ours:
        raise InputError(
            f"{folder} is no folder of a cluster: it has no {SITE_FILE}",
            "name the folder that `up` was given; nothing was removed",
        )


def remove(layout: Layout) -> list[str]:
    """Remove all that `up` made; the names of what else lies in the folder and stays."""
    rule = render.sudoers_path(layout)
    # Another cluster may have the same user for its hub, and then the rule is that one's.
    if rule.exists() and str(layout.etc / "carme.toml") in rule.read_text(encoding="utf-8"):
        rule.unlink()
    if not layout.dir.exists():
        return []
    for name in _FOLDERS:
        for mount in _mounts_below(layout.dir / name):
            run(["umount", "--lazy", mount])
        if (layout.dir / name).exists():
            shutil.rmtree(layout.dir / name)
    left = sorted(path.name for path in layout.dir.iterdir())
    if not left:
        layout.dir.rmdir()
    return left


def remains_another(folder: Path = Path("/etc/sudoers.d")) -> bool:
    """Whether this machine has another cluster: each has a sudo rule that names its carme.toml."""
    rules = (rule.read_text(encoding="utf-8") for rule in folder.glob("carme*"))
    configs = (Path(name) for text in rules for name in _CONFIG.findall(text))
    return any(config.exists() for config in configs)


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.split()[1] for line in lines]
    return sorted((m for m in found if m.startswith(f"{folder}/")), reverse=True)
