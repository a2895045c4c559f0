"""Runs collectors so that one that fails or hangs leaves the others and the scrape alone."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from carme.errors import CarmeError, UnavailableError
from carme_monitoring.metrics import LabelledCounter, Samples

Result = TypeVar("Result")
_DEFAULT_LIMIT_SECONDS = 5.0


class PartialReading(UnavailableError):
    """A part of the source does not answer. The run counts as failed; `reading` is the rest."""

    def __init__(self, message: str, reading: Any) -> None:
        super().__init__(message)
        self.reading = reading


@dataclass(frozen=True)
class GuardedResult(Generic[Result]):
    """How one run ended; `reason` is empty when it worked."""

    reason: str = ""
    error: str = ""
    result: Result | None = None


def _outcome(call: Callable[[], Result]) -> GuardedResult[Result]:
    try:
        return GuardedResult(result=call())
    except Exception as error:
        reason = error.reason if isinstance(error, CarmeError) else "error"
        reading = error.reading if isinstance(error, PartialReading) else None
        return GuardedResult(reason, f"{type(error).__name__}: {error}", reading)


class Guard:
    """One collector's thread. A run that takes too long counts as failed, and so does every further
    one until it has returned: hardware that hangs costs one thread, not the exporter."""

    def __init__(self, name: str, limit_seconds: float = _DEFAULT_LIMIT_SECONDS) -> None:
        self.name, self.limit_seconds = name, limit_seconds
        self.begin()
        self._work: queue.SimpleQueue[
            tuple[Callable[[], Any], queue.SimpleQueue[GuardedResult[Any]]]
        ] = queue.SimpleQueue()
        self._busy: queue.SimpleQueue[GuardedResult[Any]] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin a collection: success, duration and error are those of all its runs."""
        self.success: bool | None = None
        self.duration_seconds = 0.0
        self.first_error = ""

    def run(self, call: Callable[[], Result], failures: LabelledCounter) -> Result | None:
        """What `call` returns; None (or what could be read) when it failed, which is counted."""
        return self._count(lambda: self._in_thread(call), failures)

    def compute(self, call: Callable[[], Result], failures: LabelledCounter) -> Result | None:
        """The same for a `call` that reads nothing: it cannot hang, so it runs in this thread."""
        return self._count(lambda: _outcome(call), failures)

    def _count(
        self, attempt: Callable[[], GuardedResult[Result]], failures: LabelledCounter
    ) -> Result | None:
        began = time.monotonic()
        outcome = attempt()
        self.duration_seconds += time.monotonic() - began
        self.success = self.success is not False and not outcome.reason
        self.first_error = self.first_error or outcome.error
        if outcome.reason:
            failures.add((self.name, outcome.reason))
        return outcome.result

    def _in_thread(self, call: Callable[[], Result]) -> GuardedResult[Result]:
        if self._busy is not None and not self._busy.empty():
            self._busy = None  # the run that took too long has returned
        if self._busy is not None:
            return GuardedResult("timeout", "still busy with an earlier run")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True, name=self.name)
            self._thread.start()
        answer: queue.SimpleQueue[GuardedResult[Any]] = queue.SimpleQueue()
        self._work.put((call, answer))
        try:
            return answer.get(timeout=self.limit_seconds)
        except queue.Empty:
            self._busy = answer
            return GuardedResult("timeout", f"no answer within {self.limit_seconds:g} s")

    def _serve(self) -> None:
        while True:
            call, answer = self._work.get()
            answer.put(_outcome(call))


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

    def compute(self, name: str, call: Callable[[], Result]) -> Result | None:
        """The same for a `call` that reads nothing."""
        return self.add(name).compute(call, self.failures)

    def begin(self) -> None:
        """Begin a collection."""
        for guard in self._guards.values():
            guard.begin()

    def errors(self) -> dict[str, str]:
        """The first error of each collector in the last collection, for the log."""
        guards = self._guards.items()
        return {name: guard.first_error for name, guard in guards if guard.first_error}

    def add_samples(self, out: Samples) -> None:
        """Success and duration in this collection, and all failures, of every collector."""
        for name, guard in self._guards.items():
            if guard.success is not None:
                out.add("carme_collector_success", (name,), int(guard.success))
                seconds = round(guard.duration_seconds, 6)
                out.add("carme_collector_duration_seconds", (name,), seconds)
        for labels, count in self.failures.values.items():
            out.add("carme_collector_failures_total", labels, count)
        for labels, count in self.value_errors.values.items():
            out.add("carme_collector_value_errors_total", labels, count)
