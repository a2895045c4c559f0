"""Whether a file is a container image that this user can run."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError

# The Singularity Image Format starts with a launcher line of 32 bytes, then its name.
_MAGIC_AT = 32
_MAGIC = b"SIF_MAGIC"


def inspect_image(path: Path) -> dict[str, Any]:
    """Real path and size of the SIF at `path`; a typed error says what is wrong with it."""
    if not path.is_absolute():
        raise InputError(f"{path} is not an absolute path")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a file")
            head = file.read(_MAGIC_AT + len(_MAGIC))
    except OSError as error:
        raise _explain(error, path) from error
    if head[_MAGIC_AT:] != _MAGIC:
        raise InputError(f"{path} is not a SIF image", "build one with apptainer build")
    return {"path": os.path.realpath(path), "size_bytes": status.st_size}


def _explain(error: OSError, path: Path) -> CarmeError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingError(f"there is no file {path}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(f"you may not read {path}")
    if error.errno in (errno.EISDIR, errno.ENXIO):
        return InputError(f"{path} is not a file")
    return UnavailableError(f"{path}: {error.strerror}")
