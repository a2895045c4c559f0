"""Writing files: whole or not at all, with owner and mode, and only when something changed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Where slow results (images, downloads) are kept; checkouts and clusters share it."""
    named = os.environ.get("CARME_CACHE")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/cache/carme")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme"


def write(path: Path, text: str, *, mode: int = 0o644, owner: str | None = None) -> bool:
    """Put `text` into `path` by rename; True if that changed the file's text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    changed = not path.exists() or path.read_text(encoding="utf-8") != text
    if changed:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary = Path(name)
        temporary.chmod(mode)
        if owner:
            shutil.chown(temporary, owner, owner)
        temporary.rename(path)
    return changed


def folder(path: Path, *, mode: int = 0o755, owner: str | None = None) -> Path:
    """A folder with this owner and mode, made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner:
        shutil.chown(path, owner, owner)
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, once whoever holds it has let go; it stays there afterwards."""
    with path.open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
