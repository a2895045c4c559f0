"""Reads the kernel's small files. One that is missing, cut off or malformed gives None."""

import os
from pathlib import Path

_MAX = 2**64


def text(path: Path) -> str | None:
    """The file's text; None when it cannot be read. Bytes that are no UTF-8 are replaced."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, 65536)
        while chunk := os.read(fd, 65536):
            data += chunk
    except OSError:  # some files exist and refuse to be read
        return None
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace")


def stripped_text(path: Path) -> str:
    """The file's text without white space at its ends; empty when there is none."""
    return (text(path) or "").strip()


def number(path: Path) -> int | None:
    """The file's one number; None when it is not one, or larger than any counter can be."""
    return parse_integer(text(path) or "")


def parse_integer(digits: str) -> int | None:
    """An integer of up to 64 bits; None otherwise."""
    try:
        value = int(digits)
    except ValueError:
        return None
    return value if -_MAX < value < _MAX else None


def table(path: Path) -> dict[str, int]:
    """Lines of a name and a number, as in memory.stat; other lines are passed over."""
    values = {}
    for line in (text(path) or "").splitlines():
        name, _, rest = line.partition(" ")
        value = parse_integer(rest)
        if value is not None:
            values[name] = value
    return values


def folders(path: Path) -> list[Path]:
    """The folders in `path` (links to folders too), sorted; none when it is not there."""
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []


def names(path: Path) -> list[str]:
    """The names in `path`, sorted."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []
