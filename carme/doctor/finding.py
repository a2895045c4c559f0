"""What a check found."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from carme.errors import CarmeError


class Level(StrEnum):
    """How bad it is. A warning works today; a failure does not."""

    FINE = "fine"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line: which check, what it saw, what to do."""

    check: str
    level: Level
    saw: str
    todo: str = ""


@dataclass(frozen=True)
class Check:
    """A check by name; `look` returns what it found, or raises what is wrong."""

    name: str
    look: Callable[[], Finding]


def fine(check: str, saw: str) -> Finding:
    return Finding(check, Level.FINE, saw)


def warning(check: str, saw: str, todo: str) -> Finding:
    return Finding(check, Level.WARNING, saw, todo)


def failure(check: str, saw: str, todo: str) -> Finding:
    return Finding(check, Level.FAILURE, saw, todo)


def skipped(check: str, why: str) -> Finding:
    return Finding(check, Level.SKIPPED, why)


def run(check: Check) -> Finding:
    """What `check` found; an expected error is a failure with its hint."""
    try:
        return check.look()
    except CarmeError as error:
        return failure(check.name, error.message, error.hint or "see the part's log: journalctl -u")
