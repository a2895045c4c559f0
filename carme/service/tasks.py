"""Other processes for long calculations: large suites as background tasks, and single calls."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol, TypeVar

from carme.errors import CarmeError, MissingError, UnavailableError
from carme.fair_use import FairGate, GateTicket
from carme.simulator.analysis.search import Outcome, Point
from carme.simulator.runs.figures import FIGURES

T = TypeVar("T")
State = Literal["running", "done", "cancelled", "failed"]
CHUNK = 50
"""Most points that a process gets at a time."""
CHUNK_MILLISECONDS = 100.0
"""About how long a process works on them, so that tasks can be cancelled and take turns."""
AHEAD = 2
"""Chunks of a task that wait or run, for each process. The pool serves chunks in their order, so
those of other tasks come in between."""
KEEP_SECONDS = 3600
MAX_ENDED = 20
"""Ended tasks of one user that can still be read."""
MAX_ENDED_BYTES = 50_000_000
"""Of their results in memory; the newest can be read in any case."""
MAX_KEPT_BYTES = 400_000_000
"""Of the results of all users; the oldest go."""
CALL_SECONDS = 60.0
"""Longest wait for a single call, of which a fit takes some seconds."""
_CALLS_WAITING = 4
"""Further calls of one user that wait, each in a thread of the server."""
_MAX_RUNNING = 16
"""Tasks of all users: each keeps its outcomes in memory until it ends."""
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
    summarize: Callable[[list[Outcome]], bytes]
    """Makes the result of the outcomes; called in another process, as it may take seconds."""
    place: GateTicket
    """Its place among the user's running tasks."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created_at: float = field(default_factory=time.time)
    state: State = "running"
    done: int = 0
    error: str = ""
    result: bytes = b""
    """What `summarize` made, when it is done."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def end(self, state: State, error: str = "") -> None:
        """Set the final state, once, and wake all waiting threads."""
        with self.changed:
            if self.state == "running":
                self.state, self.error = state, error
            self.changed.notify_all()
        self.place.leave()

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

    def __init__(self, processes: int, tasks_per_user: int) -> None:
        self.running = FairGate(
            "tasks", _MAX_RUNNING, tasks_per_user, 0, "wait for one, or cancel one"
        )
        self.calculations = FairGate("long calculations", processes, 1, _CALLS_WAITING)
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._tasks: dict[str, BackgroundTask] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the processes, so that the first task does not wait for their imports."""
        pool = self._running_pool()
        for _ in range(self._processes):
            pool.submit(_ready)

    def call(self, user: str, function: Callable[..., T], *arguments: object) -> T:
        """The function's result, computed in another process: one for each user at a time.

        Raises BusyError if the user has too many calls, UnavailableError if there is no result.
        """
        try:
            return self.calculations.call(
                user, self._submit, function, *arguments, seconds=CALL_SECONDS
            )
        except TimeoutError:
            raise UnavailableError(
                f"the calculation took more than {CALL_SECONDS:g} s", "ask for less"
            ) from None
        except (BrokenProcessPool, CancelledError):
            hint = "try again, or ask for less"
            raise UnavailableError("a simulating process died", hint) from None

    def start(
        self,
        user: str,
        suite: Evaluator,
        points: Sequence[Point],
        point_milliseconds: float,
        summarize: Callable[[list[Outcome]], bytes],
    ) -> BackgroundTask:
        """Begin a task; BusyError if the user has too many."""
        task = BackgroundTask(user, len(points), summarize, self.running.enter(user))
        self._forget_old(user)
        with self._lock:
            self._tasks[task.id] = task
        size = min(max(int(CHUNK_MILLISECONDS / max(point_milliseconds, 1e-9)), 1), CHUNK)
        chunks = (points[first : first + size] for first in range(0, len(points), size))
        pool, ahead = self._running_pool(), AHEAD * self._processes

        def work() -> None:
            _collect(task, suite, chunks, pool, ahead)
            self._forget_old(user)

        threading.Thread(target=work, daemon=True).start()
        return task

    def _forget_old(self, user: str) -> None:
        """Remove tasks that are kept no longer, of the user and of all."""
        with self._lock:
            tasks = list(self._tasks.values())
            old = [t for t in tasks if time.time() - t.created_at > KEEP_SECONDS]
            ended = [t for t in tasks if t.user == user and t.state != "running"]
            for removed in (*old, *_superfluous(ended)):
                self._tasks.pop(removed.id, None)
            kept_bytes = sum(len(task.result) for task in self._tasks.values())
            for oldest in [t for t in self._tasks.values() if t.result]:
                if kept_bytes <= MAX_KEPT_BYTES:
                    break
                kept_bytes -= len(oldest.result)
                del self._tasks[oldest.id]

    def get(self, user: str, task_id: str) -> BackgroundTask:
        """The user's task; MissingError without one."""
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None or task.user != user:
            raise MissingError(f"no task {task_id}", "the newest tasks are kept, for an hour")
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

    def _submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        return self._running_pool().submit(function, *arguments)

    def _running_pool(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None or getattr(self._pool, "_broken", False):
                # Not fork: this process has threads, and a forked child may then hang.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(
                    self._processes, mp_context=context, initializer=_begin
                )
            return self._pool


def _superfluous(ended: Sequence[BackgroundTask]) -> list[BackgroundTask]:
    """The tasks of one user, the oldest first, whose results are not kept any longer."""
    kept_bytes = 0
    for count, task in enumerate(reversed(ended)):
        kept_bytes += len(task.result)
        if count and (count >= MAX_ENDED or kept_bytes > MAX_ENDED_BYTES):
            return list(ended[: len(ended) - count])
    return []


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
                all_outcomes = [o for number in sorted(outcomes) for o in outcomes[number]]
                task.result = pool.submit(task.summarize, all_outcomes).result()
                task.end("done")
                break
            done, _ = wait(handed, timeout=1, return_when="FIRST_COMPLETED")
            for future in done:
                outcomes[handed.pop(future)] = future.result()
            with task.changed:
                task.done = sum(map(len, outcomes.values()))
                task.changed.notify_all()
    except CarmeError as error:
        task.end("failed", str(error))
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
