"""Compilation of inner loops by Numba, cached on disk.

Numba takes half a second to import: import this module, and those that use it, only where needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


class _CompilationNotice(event.Listener):
    """Logs once per process that code is being compiled, because the first call waits for it."""

    is_logged = False

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if module.startswith("carme.simulator") and not self.is_logged:
            self.is_logged = True
            _log.warning("compiling the simulator's event queues (once after an install, ~5 s)…")

    def on_end(self, event: Any) -> None:
        """Nothing to log."""


event.register("numba:compile", _CompilationNotice())  # type: ignore[no-untyped-call]


def compiled(function: F) -> F:
    """`function` compiled at its first call and cached on disk.

    Numba caches beside the source, or in the user's cache folder if the source is read-only. If
    neither can be written, each process compiles again.
    """
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:  # "no locator available": nowhere to write
        return cast(F, numba.njit(function))
