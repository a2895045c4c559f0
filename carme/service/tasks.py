"""Large suites as tasks: simulated in other processes, watched and cancelled from here."""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from carme.errors import MissingError, UnavailableError
from carme.service.gpu_comparison import Evaluator
from carme.simulator.analysis.suite import Outcome, Point

State = Literal["running", "done", "cancelled", "failed"]
CHUNK = 50
"""Points that a process gets at a time: some tens of milliseconds, so that a task can be cancelled
and another one gets its turn."""
AHEAD = 2
"""Chunks of a task that wait or run, for each process: the pool serves what comes first, so those
of other tasks come in between."""
KEEP_SECONDS = 3600
MOST_RUNNING = 3
"""Of one user."""
MOST_KEPT = 20
"""Of one user."""


@dataclass
class BackgroundTask:
    """A suite under way or done."""

    user: str
    total: int
    question: Any
    """What the endpoint needs to make an answer from the outcomes."""
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
        last: tuple[State, int] | None = None
        while time.monotonic() < end:
            with self.changed:
                if (self.state, self.done) == last:
                    self.changed.wait(timeout=5)
                now = (self.state, self.done)
            yield now
            last = now
            if now[0] != "running":
                return


class TaskPool:
    """All tasks, and the processes that work on them."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._kept: dict[str, BackgroundTask] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the processes, so that the first task does not wait for their imports."""
        pool = self._running()
        for _ in range(self._processes):
            pool.submit(_ready)

    def start(
        self, user: str, suite: Evaluator, points: Sequence[Point], question: Any
    ) -> BackgroundTask:
        """Begin a task; UnavailableError if the user has too many."""
        task = BackgroundTask(user, len(points), question)
        with self._lock:
            self._forget(user)
            mine = [t for t in self._kept.values() if t.user == user and t.state == "running"]
            if len(mine) >= MOST_RUNNING:
                raise UnavailableError(
                    f"you have {len(mine)} tasks running", "wait for one, or cancel one"
                )
            self._kept[task.id] = task
        pool, ahead = self._running(), AHEAD * self._processes
        threading.Thread(
            target=_collect, args=(task, suite, _chunks(points), pool, ahead), daemon=True
        ).start()
        return task

    def get(self, user: str, task_id: str) -> BackgroundTask:
        """The user's task of this id."""
        with self._lock:
            task = self._kept.get(task_id)
        if task is None or task.user != user:
            raise MissingError(f"no task {task_id}", "tasks are kept for an hour")
        return task

    def cancel(self, user: str, task_id: str) -> BackgroundTask:
        """Stop it; what is already simulated is dropped."""
        task = self.get(user, task_id)
        task.end("cancelled")
        return task

    def close(self) -> None:
        """End the processes when they have done what they are at."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End the processes now. The pool cannot be closed any more: one that died may have held
        a lock of its queue, so this is for a program that ends at once."""
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

    def _forget(self, user: str) -> None:
        """Drop what is old, and the user's oldest ones beyond what is kept."""
        old = [t for t in self._kept.values() if time.time() - t.created_at > KEEP_SECONDS]
        ended = [t for t in self._kept.values() if t.user == user and t.state != "running"]
        for task in (*old, *ended[:-MOST_KEPT]):
            self._kept.pop(task.id, None)


def _chunks(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    for begin in range(0, len(points), CHUNK):
        yield points[begin : begin + CHUNK]


def _collect(
    task: BackgroundTask,
    suite: Evaluator,
    chunks: Iterator[Sequence[Point]],
    pool: ProcessPoolExecutor,
    ahead: int,
) -> None:
    """In a thread of the task's own: hand out chunks, gather outcomes, say how far it is."""
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
    """In a pool process: ignore Ctrl-C, which the parent handles, and give requests priority."""
    import os

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)


def _ready() -> None:
    """Does nothing; unpickling it imports everything."""


def _evaluate(suite: Evaluator, points: Sequence[Point]) -> list[Outcome]:
    return [_plain(suite.evaluate(point)) for point in points]


_FIGURES = (
    "time", "energy", "gpu_energy", "power", "emissions", "batch", "steps", "step_seconds",
    "samples_per_second", "gpus", "nodes",
)  # fmt: skip


def _plain(outcome: Outcome) -> Outcome:
    """Only the figures that are shown: the rest would be sent between processes for nothing."""
    kept = {name: outcome.figures[name] for name in _FIGURES if name in outcome.figures}
    return Outcome(outcome.point, kept, outcome.error)
