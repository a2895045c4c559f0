"""A session's folder in the user's home, reached without following a single symbolic link."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from carme.errors import CarmeError, DeniedError, MissingError, UnavailableError
from carme.helper.models import NAME_PATTERN

FOLDERS = (".carme", "sessions")
_NAME = re.compile(NAME_PATTERN)
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TAIL_BYTES = 64 * 1024
# Colours and cursor movements of a terminal, and what else a browser should not get.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class SessionFolder:
    """An open folder `~/.carme/sessions/<name>`; all access goes through its descriptor."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self._fd = descriptor

    @classmethod
    @contextmanager
    def open(cls, home: Path, name: str, create: bool = False) -> Iterator["SessionFolder"]:
        """The folder; made with mode 0700 if `create`. A typed error says why it cannot be used."""
        _check_name(name, "a session")
        path = home
        try:
            # The home itself may be a link: the administrator made it.
            current = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in (*FOLDERS, name):
                path = path / part
                current = _descend(current, part, create)
        except OSError as error:
            raise _explain(error, path) from error
        try:
            yield cls(current, path)
        finally:
            os.close(current)

    def write(self, name: str, text: str) -> None:
        """Put a file of mode 0600 there, whole or not at all."""
        _check_name(name, "a session's file")
        temporary = f".{name[:80]}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=self._fd)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text.encode())
                    file.flush()
                    # Quotas on network file systems are noticed here, not at write.
                    os.fsync(file.fileno())
                os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._fd)
                raise
        except OSError as error:
            raise _explain(error, self.path / name) from error

    def tail(self, name: str, lines: int) -> str:
        """The last lines of a regular file there, safe to show; at most 64 KiB."""
        _check_name(name, "a session's file")
        # Not blocking: a pipe in the place of the log must not block the helper.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._fd)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DeniedError(f"{self.path / name} is not a file")
                file.seek(max(0, status.st_size - _TAIL_BYTES))
                raw = file.read(_TAIL_BYTES)
        except OSError as error:
            raise _explain(error, self.path / name) from error
        text = _CONTROL.sub("", raw.decode("utf-8", errors="replace").replace("\r\n", "\n"))
        return "\n".join(text.rstrip("\n").split("\n")[-lines:])


def _check_name(name: str, of: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeniedError(f"{name!r} is not the name of {of}")


def remove_old(home: Path, keep: Collection[str], before: float) -> list[str]:
    """Remove folders of sessions in which nothing changed since `before`; returns their names.

    Follows no link and raises no error: an old folder does no harm.
    """
    removed = []
    with suppress(OSError):
        parent = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for folder in FOLDERS:
            parent = _descend(parent, folder, create=False)
        try:
            for name in os.listdir(parent):  # noqa: PTH208 (of a descriptor)
                if name in keep or not _NAME.fullmatch(name):
                    continue
                with suppress(OSError):
                    if _changed_at(name, parent) < before:
                        # Works on descriptors: what is swapped for a link meanwhile is left alone.
                        shutil.rmtree(name, dir_fd=parent)
                        removed.append(name)
        finally:
            os.close(parent)
    return removed


def _changed_at(name: str, parent: int) -> float:
    """When something in the folder last changed; OSError if it is no folder or not this user's."""
    folder = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    try:
        folder_status = os.fstat(folder)
        if folder_status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user")
        names = os.listdir(folder)  # noqa: PTH208 (of a descriptor)
        file_statuses = [os.stat(file, dir_fd=folder, follow_symlinks=False) for file in names]
        return max(status.st_mtime for status in (folder_status, *file_statuses))
    finally:
        os.close(folder)


def _descend(parent: int, name: str, create: bool) -> int:
    """The folder `name` below `parent`, which is closed."""
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
        child = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    finally:
        os.close(parent)
    status = os.fstat(child)
    if status.st_uid != os.geteuid():
        os.close(child)
        raise PermissionError(errno.EPERM, "belongs to another user")
    if create and stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(child, 0o700)
    return child


def _explain(error: OSError, path: Path) -> CarmeError:
    """The typed error for a failed access, with a message for the owner of the home folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DeniedError(
            f"your home folder is full: {path} could not be written",
            "delete files there, then retry",
        )
    if error.errno == errno.ENOENT:
        return MissingError(f"{path} does not exist")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return DeniedError(f"{path} is a link or no folder", "remove it, then retry")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DeniedError(f"{path} cannot be used: {error.strerror}")
    return UnavailableError(f"{path}: {error.strerror}")
