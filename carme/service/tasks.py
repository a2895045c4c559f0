"""Large suites as tasks: simulated in other processes, watched and cancelled from here."""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from carme.errors import MissingError, UnavailableError
from carme.simulate.suites import Suite
from carme.simulator.suite import Outcome, Point

T = TypeVar("T")
State = Literal["running", "done", "cancelled", "failed"]
CHUNK = 50
"""Points that a process gets at a time: some tens of milliseconds, so that a task can be cancelled
and another one gets its turn."""
KEEP_SECONDS = 3600
MOST_RUNNING = 3
"""Of one user."""
MOST_KEPT = 20
"""Of one user."""


@dataclass
class Task:
    """A suite under way or done."""

    user: str
    total: int
    question: Any
    """What whoever began it needs for making an answer of the outcomes."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created_at: float = field(default_factory=time.time)
    state: State = "running"
    done: int = 0
    error: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    futures: list[Future[list[Outcome]]] = field(default_factory=list)

    def end(self, state: State, error: str = "") -> None:
        """Come to an end, once; whoever waits is told."""
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


class Tasks:
    """All tasks, and the processes that work on them."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._kept: dict[str, Task] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the processes, so that the first task does not wait for their imports."""
        pool = self._running()
        for _ in range(self._processes):
            pool.submit(_ready)

    def run(self, suite: Suite, points: Sequence[Point]) -> list[Outcome]:
        """All outcomes, waited for."""
        pool = self._running()
        futures = [pool.submit(_evaluate, suite, part) for part in _chunks(points)]
        return [outcome for future in futures for outcome in future.result()]

    def call(self, function: Callable[..., T], *given: Any, seconds: float) -> T:
        """What the function returns in another process; TimeoutError if that takes too long."""
        return self._running().submit(function, *given).result(timeout=seconds)

    def start(self, user: str, suite: Suite, points: Sequence[Point], question: Any) -> Task:
        """Begin a task; UnavailableError if the user has too many."""
        task = Task(user, len(points), question)
        with self._lock:
            self._forget(user)
            mine = [t for t in self._kept.values() if t.user == user and t.state == "running"]
            if len(mine) >= MOST_RUNNING:
                raise UnavailableError(
                    f"you have {len(mine)} tasks running", "wait for one, or cancel one"
                )
            self._kept[task.id] = task
        pool = self._running()
        task.futures = [pool.submit(_evaluate, suite, part) for part in _chunks(points)]
        threading.Thread(target=_collect, args=(task,), daemon=True).start()
        return task

    def get(self, user: str, task_id: str) -> Task:
        """The user's task of this id."""
        with self._lock:
            task = self._kept.get(task_id)
        if task is None or task.user != user:
            raise MissingError(f"no task {task_id}", "tasks are kept for an hour")
        return task

    def cancel(self, user: str, task_id: str) -> Task:
        """Stop it; what is already simulated is dropped."""
        task = self.get(user, task_id)
        task.end("cancelled")
        for future in task.futures:
            future.cancel()
        return task

    def close(self) -> None:
        """End the processes at once: what they compute is of no use to anybody any more."""
        if not self._pool:
            return
        processes = dict(getattr(self._pool, "_processes", None) or {})
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()

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


def _collect(task: Task) -> None:
    """In a thread of the task's own: gather outcomes in order, and say how far it is."""
    try:
        waiting = set(task.futures)
        while waiting and task.state == "running":
            done, waiting = wait(waiting, timeout=1, return_when="FIRST_COMPLETED")
            count = sum(len(future.result()) for future in done)
            with task.changed:
                task.done += count
                task.changed.notify_all()
        if task.state == "running":
            task.outcomes = [o for future in task.futures for o in future.result()]
            task.end("done")
    except CancelledError:
        task.end("cancelled")
    except BrokenProcessPool:
        task.end("failed", "a simulating process died; try again with fewer points")
    except Exception as error:
        task.end("failed", f"{type(error).__name__}: {error}"[:200])
    finally:
        task.futures = []


def _begin() -> None:
    """In a pool process: Ctrl-C is for the parent, and answering people comes first."""
    import os

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)


def _ready() -> None:
    """Something to do that imports everything."""


def _evaluate(suite: Suite, points: Sequence[Point]) -> list[Outcome]:
    return [_plain(suite.evaluate(point)) for point in points]


_FIGURES = (
    "time", "energy", "gpu_energy", "power", "emissions", "batch", "steps", "step_seconds",
    "samples_per_second", "gpus", "nodes",
)  # fmt: skip


def _plain(outcome: Outcome) -> Outcome:
    """Only the figures that are shown: the rest would be sent between processes for nothing."""
    kept = {name: outcome.figures[name] for name in _FIGURES if name in outcome.figures}
    return Outcome(outcome.point, kept, outcome.error)
