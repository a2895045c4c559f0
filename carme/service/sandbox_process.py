"""A separate process for calls that may hang or crash: a hostile file cannot end the service."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from carme.errors import UnavailableError

T = TypeVar("T")
TIMEOUT_SECONDS = 5.0
"""Longest wait for the previous call: a waiting request holds a thread of the server."""


class SandboxProcess:
    """A process for calls that may hang or crash: one call at a time. The first call starts it;
    a call that fails kills it, and the next one starts a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: tuple[BaseProcess, Connection] | None = None

    def call(self, function: Callable[..., T], *arguments: Any, seconds: int) -> T:
        """The function's result. UnavailableError while another call goes on, TimeoutError if this
        one takes too long, EOFError or OSError if the process dies."""
        if not self._lock.acquire(timeout=TIMEOUT_SECONDS):
            raise UnavailableError("another file is being read", "try again in a moment")
        try:
            pipe = self._pipe()
            pipe.send((seconds, function, arguments))
            if not pipe.poll(seconds):
                raise TimeoutError
            result: T = pipe.recv()
            return result
        except (OSError, EOFError):  # TimeoutError is an OSError
            self.close()
            raise
        finally:
            self._lock.release()

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
            seconds, function, arguments = pipe.recv()
            signal.alarm(seconds + 1)  # ends this process if the service is gone
            pipe.send(function(*arguments))
            signal.alarm(0)
