"""Checks, their findings, and running them in parallel."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from carme.errors import CarmeError
from carme.system.programs import CommandResult, execute

_COMMAND_SECONDS = 12.0


class Level(StrEnum):
    """How severe a finding is: a service still works with a warning, but not with a fault."""

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
    """A named check; `run` returns what it found, or raises a CarmeError for a fault."""

    name: str
    run: Callable[[], Finding]
    group: str = "host"
    todo: str = ""
    """What to do when `run` raises; otherwise the error's hint."""
    needs_root: bool = False
    seconds: float = 25
    """Time limit."""
    needs: tuple[str, ...] = ()
    """Other checks: while one of them has a fault, it is the likely cause of a fault here."""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.WARNING, found, todo)


def fault(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.FAULT, found, todo)


def absent(check: str, why: str = "not on this host") -> Finding:
    return Finding(check, Level.ABSENT, why)


def call(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = _COMMAND_SECONDS,
) -> CommandResult:
    """Run a program to its end, in `/`: other users may not enter the current folder."""
    return execute(argv, stdin=stdin, env=env, timeout_seconds=seconds, cwd="/")


def run_checks(checks: Sequence[Check], is_root: bool | None = None) -> list[Finding]:
    """The finding of each check, in their order; all run at once, each within its time limit."""
    is_root = os.geteuid() == 0 if is_root is None else is_root
    running = [_RunningCheck(check, is_root) for check in checks]
    findings = [check.finding() for check in running]
    faults = {finding.check for finding in findings if finding.level is Level.FAULT}
    for index, check in enumerate(checks):
        causes = [name for name in check.needs if name in faults]
        if causes and findings[index].level is Level.FAULT:
            findings[index] = replace(findings[index], todo=f"repair first: {causes[0]}")
    return findings


class _RunningCheck:
    """A check in a daemon thread: a dead file server may block it beyond the program's end."""

    def __init__(self, check: Check, is_root: bool) -> None:
        self._check = check
        self._findings: list[Finding] = []
        self._deadline = time.monotonic() + check.seconds
        self._thread = threading.Thread(target=self._run, args=(is_root,), daemon=True)
        self._thread.start()

    def finding(self) -> Finding:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._findings:
            return self._findings[0]
        todo = self._check.todo or "is the machine, or the service that it asks, overloaded?"
        return fault(self._check.name, f"no answer within {self._check.seconds:g} s", todo)

    def _run(self, is_root: bool) -> None:
        self._findings.append(_finding_of(self._check, is_root))


def _finding_of(check: Check, is_root: bool) -> Finding:
    if check.needs_root and not is_root:
        return Finding(check.name, Level.ROOT, "only root can check this")
    try:
        return check.run()
    except CarmeError as error:
        todo = check.todo or error.hint or "see the log of the service"
        return fault(check.name, " ".join(error.message.split()), todo)
    except Exception as error:
        # A bug in one check must not hide the findings of the others.
        message = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())}"
        return fault(check.name, message, "please report it with the output of carme doctor --json")
