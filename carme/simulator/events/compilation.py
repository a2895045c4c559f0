"""Numba for event queues: compiled once, kept on disk, and never a silent wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


class _SayIt(event.Listener):
    """Says once a process that code is being compiled, which is what the first call waits for."""

    said = False

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if module.startswith("carme.simulator") and not self.said:
            self.said = True
            _log.warning("compiling the simulator's event queues (once after an install, ~5 s)…")

    def on_end(self, event: Any) -> None:
        """The result speaks for itself."""


event.register("numba:compile", _SayIt())  # type: ignore[no-untyped-call]


def compiled(function: F) -> F:
    """`function` compiled at its first call and cached on disk.

    Numba caches beside the source, or in the user's cache folder where that is read-only. A
    service user may have neither; then the code is compiled anew in each process.
    """
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:  # "no locator available": nowhere to write
        return cast(F, numba.njit(function))
