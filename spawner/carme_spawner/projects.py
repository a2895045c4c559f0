"""Project folders: a folder per Unix group, open to the group's members."""

from pathlib import Path

from carme.system.users import groups_of


def projects(root: Path | None, user: str) -> dict[str, Path]:
    """Group to folder, for the user's groups that have one below `root`."""
    if root is None:
        return {}
    found = {}
    for name, number in groups_of(user).items():
        folder = root / name
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_gid == number:
            found[name] = folder
    return dict(sorted(found.items()))
