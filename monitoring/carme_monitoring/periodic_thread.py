"""A thread that does one thing again and again."""

import logging
import threading
import time
from abc import ABC, abstractmethod

log = logging.getLogger(__name__)
_PAUSE_SECONDS = 5.0
"""After an error."""


class PeriodicThread(ABC):
    """A daemon thread that calls `step` again and again. An error is logged when it is new."""

    def __init__(self, name: str) -> None:
        self._name, self._stop = name, threading.Event()

    @abstractmethod
    def step(self) -> None:
        """One round."""

    @abstractmethod
    def period_seconds(self) -> float:
        """Time from the start of one round to that of the next."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._loop, daemon=True, name=self._name).start()

    def stop(self) -> None:
        """End after this round."""
        self._stop.set()

    def _loop(self) -> None:
        due, problem = time.monotonic(), ""
        while not self._stop.is_set():
            try:
                self.step()
                problem = ""
            except Exception as error:
                if str(error) != problem:
                    log.warning("%s: %s", self._name, error, exc_info=True)
                problem = str(error)
                self._stop.wait(_PAUSE_SECONDS)
            due = max(due + self.period_seconds(), time.monotonic())
            self._stop.wait(due - time.monotonic())
