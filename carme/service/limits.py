"""How often somebody may ask: a bucket for each, filled at a steady rate."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_KEPT = 10_000


class Buckets:
    """`per_minute` requests for each key; half a minute's worth may come at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._size = max(per_minute / 2, 1.0)
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """0 if the request may pass; else the seconds until it might."""
        now = self._clock()
        with self._lock:
            level, at = self._kept.pop(key, (self._size, now))
            level = min(level + (now - at) * self._rate, self._size)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate
            self._kept[key] = (level - 1 if wait == 0 else level, now)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return wait
