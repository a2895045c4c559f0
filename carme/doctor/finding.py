"""What a check is, and what it found."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. What a warning is about works today; a fault does not."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    ABSENT = "skipped"
    """Not on this host."""
    ROOT = "needs root"


@dataclass(frozen=True)
class Finding:
    """One line: which check, what it found, what to do."""

    check: str
    level: Level
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Check:
    """A check by name; `look` returns what it found, or raises what is wrong."""

    name: str
    look: Callable[[], Finding]
    group: str = "host"
    todo: str = ""
    """What to do when `look` raises an error without a hint."""
    root: bool = False
    """Whether only root can look."""
    seconds: float = 25
    """It is given up after so long."""
    needs: tuple[str, ...] = ()
    """Other checks: while one of them shows a fault, this one's is likely its consequence."""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.WARNING, found, todo)


def fault(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.FAULT, found, todo)


def absent(check: str, why: str = "not on this host") -> Finding:
    return Finding(check, Level.ABSENT, why)
