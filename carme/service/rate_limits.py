"""Limits for each user: requests a minute (token bucket), and concurrent streams."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from cachetools import LRUCache

_MAX_KEYS = 10_000


class RateLimiter:
    """`per_minute` requests for each key, of which half may come at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._size = max(per_minute / 2, 1.0)
        self._clock = clock
        self._levels: LRUCache[str, tuple[float, float]] = LRUCache(_MAX_KEYS)
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """0 if the request may pass; else the seconds to wait."""
        now = self._clock()
        with self._lock:
            level, at = self._levels.get(key, (self._size, now))
            level = min(level + (now - at) * self._rate, self._size)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate
            self._levels[key] = (level - 1 if wait == 0 else level, now)
        return wait


class ConcurrencyLimiter:
    """At most `maximum` holders of a slot at a time, and `per_key` for each key."""

    def __init__(self, maximum: int, per_key: int) -> None:
        self._maximum, self._per_key = maximum, per_key
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, key: str) -> Callable[[], None] | None:
        """A function that gives the slot back, once; None if no slot is free."""
        with self._lock:
            if self._held.total() >= self._maximum or self._held[key] >= self._per_key:
                return None
            self._held[key] += 1
        slot = ExitStack()
        slot.callback(self._give_back, key)
        return slot.close

    def _give_back(self, key: str) -> None:
        with self._lock:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
