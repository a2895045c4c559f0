"""A separate process for calls that may hang or crash; it is killed then, and the next call starts
a new one."""

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
PATIENCE_SECONDS = 5.0
"""Longest wait for the previous call: a waiting request holds a thread of the server."""


class SandboxProcess:
    """One call at a time; the process starts with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: tuple[BaseProcess, Connection] | None = None

    def call(self, function: Callable[..., T], *arguments: Any, seconds: int) -> T:
        """What the function returns there. UnavailableError while another call goes on,
        TimeoutError if this one takes too long, EOFError or OSError if the process dies of it."""
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise UnavailableError("others' files are being read", "try again in a moment")
        try:
            pipe = self._pipe()
            pipe.send((seconds, function, arguments))
            if not pipe.poll(seconds):
                raise TimeoutError
            result: T = pipe.recv()
            return result
        except (OSError, EOFError):  # TimeoutError is an OSError
            self._end()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._end()

    def _pipe(self) -> Connection:
        if self._begun is None:
            # Not fork: this process has threads, and a forked child may then hang.
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()  # so that its end is the end of the pipe
            self._begun = (process, here)
        return self._begun[1]

    def _end(self) -> None:
        if self._begun:
            process, pipe = self._begun
            self._begun = None
            process.kill()
            process.join()
            pipe.close()


def _serve(pipe: Connection) -> None:
    """In the process: answer calls until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    with suppress(EOFError, OSError):
        while True:
            seconds, function, given = pipe.recv()
            signal.alarm(seconds + 1)  # ends it, should nobody be left to do so
            pipe.send(function(*given))
            signal.alarm(0)
