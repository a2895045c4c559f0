"""Runs checks side by side, so that none can hold up, hang or end the others."""

import os
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import replace

from carme.doctor.finding import Check, Finding, Level, fault
from carme.errors import CarmeError


def examine(checks: Sequence[Check], is_root: bool | None = None) -> list[Finding]:
    """What each check found, in their order; one that takes too long is given up."""
    root = os.geteuid() == 0 if is_root is None else is_root
    runs = [_Run(check, root) for check in checks]
    found = [run.finding() for run in runs]
    broken = {finding.check for finding in found if finding.level is Level.FAULT}
    return [_after_causes(c, f, broken) for c, f in zip(checks, found, strict=True)]


def _after_causes(check: Check, finding: Finding, broken: Container[str]) -> Finding:
    """A fault that likely comes from another one says so instead of how to mend this service."""
    causes = [name for name in check.needs if name in broken]
    if finding.level is not Level.FAULT or not causes:
        return finding
    return replace(finding, todo=f"mend first: {causes[0]}")


class _Run:
    """A check in a thread that nobody waits for at the end: a dead file server may keep it."""

    def __init__(self, check: Check, is_root: bool) -> None:
        self._check = check
        self._found: list[Finding] = []
        self._ends = time.monotonic() + check.seconds
        self._thread = threading.Thread(target=self._run, args=(is_root,), daemon=True)
        self._thread.start()

    def finding(self) -> Finding:
        self._thread.join(max(0.0, self._ends - time.monotonic()))
        if self._found:
            return self._found[0]
        check = self._check
        words = f"no answer within {check.seconds:g} s"
        return fault(
            check.name, words, check.todo or "is the machine, or what it asks, overloaded?"
        )

    def _run(self, is_root: bool) -> None:
        self._found.append(_look(self._check, is_root))


def _look(check: Check, is_root: bool) -> Finding:
    if check.root and not is_root:
        return Finding(check.name, Level.ROOT, "only root can look")
    try:
        return check.look()
    except CarmeError as error:
        todo = error.hint if not check.todo else check.todo
        return fault(check.name, _one_line(error.message), todo or "see the log of the service")
    except Exception as error:
        # A mistake of ours in one check must not hide what the others found.
        words = f"the check itself failed: {type(error).__name__}: {_one_line(str(error))}"
        return fault(check.name, words, "please report it with the output of carme doctor --json")


def _one_line(text: str) -> str:
    return " ".join(text.split())
