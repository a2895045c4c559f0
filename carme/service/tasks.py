"""Large suites as background tasks: simulated in other processes, followed and cancelled here."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

from carme.errors import MissingError, UnavailableError
from carme.simulator.analysis.search import Outcome, Point
from carme.simulator.runs.figures import FIGURES

State = Literal["running", "done", "cancelled", "failed"]
CHUNK = 50
"""Points that a process gets at a time: some tens of milliseconds, so that tasks can be cancelled
and take turns."""
AHEAD = 2
"""Chunks of a task that wait or run, for each process. The pool serves chunks in their order, so
those of other tasks come in between."""
KEEP_SECONDS = 3600
MAX_RUNNING = 3
"""Running tasks of one user."""
MAX_ENDED = 20
"""Ended tasks of one user that can still be read."""
_SENT_FIGURES = (*FIGURES, "batch")
"""What an answer shows of an outcome; the rest is not sent between processes."""


class Evaluator(Protocol):
    """Simulates points one by one; can be sent to another process."""

    def evaluate(self, point: Point) -> Outcome: ...


@dataclass
class BackgroundTask:
    """A suite that runs or has ended."""

    user: str
    total: int
    context: Any
    """The part of the request that turns outcomes into an answer."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created_at: float = field(default_factory=time.time)
    state: State = "running"
    done: int = 0
    error: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def end(self, state: State, error: str = "") -> None:
        """Set the final state, once, and wake all waiting threads."""
        with self.changed:
            if self.state == "running":
                self.state, self.error = state, error
            self.changed.notify_all()

    def follow(self, seconds: float = 300) -> Iterator[tuple[State, int]]:
        """(state, points done) at every change, until the end."""
        end = time.monotonic() + seconds
        progress: tuple[State, int] | None = None
        while time.monotonic() < end and (progress is None or progress[0] == "running"):
            with self.changed:
                if (self.state, self.done) == progress:
                    self.changed.wait(timeout=5)
                progress = (self.state, self.done)
            yield progress


class TaskPool:
    """All tasks, and the processes that work on them."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._tasks: dict[str, BackgroundTask] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the processes, so that the first task does not wait for their imports."""
        pool = self._running()
        for _ in range(self._processes):
            pool.submit(_ready)

    def start(
        self, user: str, suite: Evaluator, points: Sequence[Point], context: Any
    ) -> BackgroundTask:
        """Begin a task; UnavailableError if the user has too many."""
        task = BackgroundTask(user, len(points), context)
        with self._lock:
            tasks = list(self._tasks.values())
            old = [t for t in tasks if time.time() - t.created_at > KEEP_SECONDS]
            ended = [t for t in tasks if t.user == user and t.state != "running"]
            for removed in (*old, *ended[:-MAX_ENDED]):
                self._tasks.pop(removed.id, None)
            running = sum(t.user == user and t.state == "running" for t in self._tasks.values())
            if running >= MAX_RUNNING:
                raise UnavailableError(
                    f"you have {running} tasks running", "wait for one, or cancel one"
                )
            self._tasks[task.id] = task
        chunks = (points[first : first + CHUNK] for first in range(0, len(points), CHUNK))
        arguments = (task, suite, chunks, self._running(), AHEAD * self._processes)
        threading.Thread(target=_collect, args=arguments, daemon=True).start()
        return task

    def get(self, user: str, task_id: str) -> BackgroundTask:
        """The user's task; MissingError without one."""
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None or task.user != user:
            raise MissingError(f"no task {task_id}", "tasks are kept for an hour")
        return task

    def close(self) -> None:
        """End the processes when their current chunks are done."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End the processes now. The pool cannot be closed after that, as a killed process may have
        held a lock of its queue: only for a program that ends at once."""
        for process in dict(getattr(self._pool, "_processes", None) or {}).values():
            process.kill()

    def _running(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None or getattr(self._pool, "_broken", False):
                # Not fork: this process has threads, and a forked child may then hang.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(
                    self._processes, mp_context=context, initializer=_begin
                )
            return self._pool


def _collect(
    task: BackgroundTask,
    suite: Evaluator,
    chunks: Iterator[Sequence[Point]],
    pool: ProcessPoolExecutor,
    ahead: int,
) -> None:
    """In a thread of the task: hand out chunks, gather outcomes, update the progress."""
    numbered = enumerate(chunks)
    outcomes: dict[int, list[Outcome]] = {}
    handed: dict[Future[list[Outcome]], int] = {}
    try:
        while task.state == "running":
            for number, chunk in islice(numbered, ahead - len(handed)):
                handed[pool.submit(_evaluate, suite, chunk)] = number
            if not handed:
                task.outcomes = [o for number in sorted(outcomes) for o in outcomes[number]]
                task.end("done")
                break
            done, _ = wait(handed, timeout=1, return_when="FIRST_COMPLETED")
            for future in done:
                outcomes[handed.pop(future)] = future.result()
            with task.changed:
                task.done = sum(map(len, outcomes.values()))
                task.changed.notify_all()
    except CancelledError:
        task.end("cancelled")
    except BrokenProcessPool:
        task.end("failed", "a simulating process died; try again with fewer points")
    except Exception as error:
        task.end("failed", f"{type(error).__name__}: {error}"[:200])
    finally:
        for future in handed:
            future.cancel()


def _begin() -> None:
    """In a pool process: ignore Ctrl-C, which the parent handles, and let requests go first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)


def _ready() -> None:
    """Does nothing; unpickling it imports everything."""


def _evaluate(suite: Evaluator, points: Sequence[Point]) -> list[Outcome]:
    """In a pool process: the outcomes with the figures that are shown, and no others to send."""
    outcomes = [suite.evaluate(point) for point in points]
    return [
        Outcome(o.point, {n: o.figures[n] for n in _SENT_FIGURES if n in o.figures}, o.error)
        for o in outcomes
    ]
