"""Files: written completely or not at all, with owner and mode, only when the text changed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The folder for images and downloads, which all checkouts and clusters share."""
    if path := os.environ.get("CARME_CACHE"):
        return Path(path)
    if os.geteuid() == 0:
        return Path("/var/cache/carme")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme"


def write(path: Path, text: str, *, mode: int = 0o644, owner: str | None = None) -> bool:
    """Replace the file by `text` in one step; True if that changed its text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    changed = not path.exists() or path.read_bytes() != text.encode()
    if changed:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            if owner:
                shutil.chown(temporary, owner, owner)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
    return changed


def folder(path: Path, *, mode: int = 0o755, owner: str | None = None) -> Path:
    """The folder with this owner and mode, created if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner:
        shutil.chown(path, owner, owner)
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock file `path` and hold it; the file stays afterwards."""
    with path.open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
