"""Runs collectors so that one that fails or hangs leaves the others and the scrape alone."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from carme.errors import CarmeError, UnavailableError
from carme_monitoring.metrics import LabelledCounter, Samples

Result = TypeVar("Result")
_DEFAULT_LIMIT_SECONDS = 5.0


class PartialReading(UnavailableError):
    """A part of the source does not answer. The run counts as failed; `reading` is the rest."""

    def __init__(self, message: str, reading: Any) -> None:
        super().__init__(message)
        self.reading = reading


class Guard:
    """One collector's thread. A run that takes too long counts as failed, and so does every further
    one until it has returned: hardware that hangs costs one thread, not the exporter."""

    def __init__(self, name: str, limit_seconds: float = _DEFAULT_LIMIT_SECONDS) -> None:
        self.name, self.limit_seconds = name, limit_seconds
        self.success: bool | None = None
        self.duration_seconds = 0.0
        self.last_error = ""
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]
        self._work = queue.SimpleQueue()
        self._busy: queue.SimpleQueue[Any] | None = None
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Result], failures: LabelledCounter) -> Result | None:
        """What `call` returns; None (or what could be read) when it failed, which is counted."""
        began = time.monotonic()
        reason, result = "", None
        if self._busy is not None and not self._busy.empty():
            self._busy = None  # the run that took too long has returned
        if self._busy is not None:
            reason, self.last_error = "timeout", "still busy with an earlier run"
        else:
            reason, result = self._try(call)
        self.duration_seconds = time.monotonic() - began
        self.success = not reason
        if reason:
            failures.add((self.name, reason))
        return result

    def _try(self, call: Callable[[], Result]) -> tuple[str, Result | None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True, name=self.name)
            self._thread.start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work.put((call, answer))
        try:
            error, result = answer.get(timeout=self.limit_seconds)
        except queue.Empty:
            self._busy = answer
            self.last_error = f"no answer within {self.limit_seconds:g} s"
            return "timeout", None
        self.last_error = "" if error is None else f"{type(error).__name__}: {error}"
        if error is None:
            return "", result
        reason = error.reason if isinstance(error, CarmeError) else "error"
        return reason, error.reading if isinstance(error, PartialReading) else None

    def _serve(self) -> None:
        while True:
            call, answer = self._work.get()
            try:
                answer.put((None, call()))
            except Exception as error:
                answer.put((error, None))


class Guards:
    """The guards of all collectors, and their samples."""

    def __init__(self, limits: dict[str, float] | None = None) -> None:
        self._limits = limits or {}
        self._guards: dict[str, Guard] = {}
        self.failures = LabelledCounter()
        self.value_errors = LabelledCounter()

    def add(self, name: str) -> Guard:
        """The guard of the collector `name`, created if there is none."""
        if name not in self._guards:
            limit = self._limits.get(name, _DEFAULT_LIMIT_SECONDS)
            self._guards[name] = Guard(name, limit)
        return self._guards[name]

    def run(self, name: str, call: Callable[[], Result]) -> Result | None:
        """Run `call` as part of the collector `name`."""
        return self.add(name).run(call, self.failures)

    def errors(self) -> dict[str, str]:
        """What went wrong last, by collector, for the log."""
        return {name: guard.last_error for name, guard in self._guards.items() if guard.last_error}

    def add_samples(self, out: Samples) -> None:
        """Success, duration and failures of every collector."""
        for name, guard in self._guards.items():
            if guard.success is not None:
                out.add("carme_collector_success", (name,), int(guard.success))
                seconds = round(guard.duration_seconds, 6)
                out.add("carme_collector_duration_seconds", (name,), seconds)
        for labels, count in self.failures.values.items():
            out.add("carme_collector_failures_total", labels, count)
        for labels, count in self.value_errors.values.items():
            out.add("carme_collector_value_errors_total", labels, count)
