"""Project folders: a folder per Unix group, open to the group's members."""

import grp
import os
import pwd
from pathlib import Path


def projects(root: Path | None, user: str) -> dict[str, Path]:
    """The user's groups that have a folder below `root`, with it; the hub need not read it."""
    if root is None:
        return {}
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return {}
    found = {}
    for number in ids:
        try:
            name = grp.getgrgid(number).gr_name
        except KeyError:
            continue  # a group that another machine knows
        folder = root / name
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_gid == number:
            found[name] = folder
    return dict(sorted(found.items()))
