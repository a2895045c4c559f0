"""Separate processes for calls that may hang or crash: a hostile file cannot end the service."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from carme.fair_use import FairGate

T = TypeVar("T")
TIMEOUT_SECONDS = 5.0
"""Longest wait for a process: a waiting request holds a thread of the server."""
_PROCESSES = 2
"""One of each user: a user with slow files delays no other one."""
_WAITING = 1


class SandboxPool:
    """Processes that users take turns to use, one of each user at a time."""

    def __init__(self) -> None:
        self.gate = FairGate("files", _PROCESSES, 1, _WAITING)
        self._processes = [SandboxProcess() for _ in range(_PROCESSES)]
        self._free: SimpleQueue[SandboxProcess] = SimpleQueue()
        for process in self._processes:
            self._free.put(process)

    @contextmanager
    def process(self, user: str) -> Iterator[SandboxProcess]:
        """A process for the duration of the context. BusyError if the user has one and waits for
        another, UnavailableError if all are busy for too long."""
        with self.gate.turn(user, TIMEOUT_SECONDS):
            process = self._free.get()
            try:
                yield process
            finally:
                self._free.put(process)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()


class SandboxProcess:
    """A process for calls that may hang or crash: one call at a time. The first call starts it;
    a call that fails kills it, and the next one starts a new one."""

    def __init__(self) -> None:
        self._process: tuple[BaseProcess, Connection] | None = None

    def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: int,
        memory_bytes: int | None = None,
    ) -> T:
        """The function's result. TimeoutError if it takes too long, EOFError or OSError if the
        process dies. The function gets a MemoryError, or the process dies, if it takes more than
        `memory_bytes`."""
        try:
            pipe = self._pipe()
            pipe.send((seconds, memory_bytes, function, arguments))
            if not pipe.poll(seconds):
                raise TimeoutError
            result: T = pipe.recv()
            return result
        except (OSError, EOFError):  # TimeoutError is an OSError
            self.close()
            raise

    def close(self) -> None:
        """Kill the process."""
        if self._process:
            process, pipe = self._process
            self._process = None
            process.kill()
            process.join()
            pipe.close()

    def _pipe(self) -> Connection:
        if self._process is None:
            # Not fork: this process has threads, and a forked child may then hang.
            context = multiprocessing.get_context("spawn")
            own_end, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(other_end,), daemon=True)
            process.start()
            other_end.close()  # so that the pipe ends when the process does
            self._process = (process, own_end)
        return self._process[1]


def _serve(pipe: Connection) -> None:
    """In the process: answer calls until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    with suppress(EOFError, OSError):
        while True:
            seconds, memory_bytes, function, arguments = pipe.recv()
            _limit_memory(memory_bytes)
            signal.alarm(seconds + 1)  # ends this process if the service is gone
            pipe.send(function(*arguments))
            signal.alarm(0)


def _limit_memory(more_bytes: int | None) -> None:
    """Limit this process to that much more address space than it has now; None lifts the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = hard
    if more_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + more_bytes
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
