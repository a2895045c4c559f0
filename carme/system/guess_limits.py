"""How much time may go into checking credentials that turn out wrong: of each peer, and of all."""

import threading
import time
from collections.abc import Callable

from cachetools import TTLCache

_MAX_PEERS = 4096
_REMEMBERED_SECONDS = 600.0


class TooManyGuessesError(Exception):
    """The credentials were not checked. `seconds` is the time to wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many wrong credentials; wait {seconds:.0f} s")
        self.seconds = seconds


class GuessLimiter:
    """Limits the time for wrong credentials to a share of each peer's and of everybody's time.

    A peer that sent nothing wrong for ten minutes is never held up: a flood of wrong credentials
    keeps nobody else from being let in.
    """

    def __init__(
        self,
        peer_share: float = 0.02,
        total_share: float = 0.1,
        burst_seconds: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer_share, self._total_share, self._burst = peer_share, total_share, burst_seconds
        self._clock = clock
        self._spent: TTLCache[str, tuple[float, float]] = TTLCache(
            _MAX_PEERS, _REMEMBERED_SECONDS, timer=clock
        )
        self._spent_by_all = (0.0, clock())
        self._lock = threading.Lock()

    def check(self, peer: str) -> None:
        """Raises TooManyGuessesError if the peer, or all peers that were wrong, used up their
        time."""
        now = self._clock()
        with self._lock:
            spent = self._spent.get(peer)
            if spent is None:
                return
            wait = max(
                self._wait(spent, self._peer_share, now),
                self._wait(self._spent_by_all, self._total_share, now),
            )
        if wait > 0:
            raise TooManyGuessesError(wait)

    def charge(self, peer: str, seconds: float) -> None:
        """The peer's credentials were wrong, and the check took `seconds`."""
        now = self._clock()
        with self._lock:
            before = self._spent.get(peer, (0.0, now))
            self._spent[peer] = (_left(before, self._peer_share, now) + seconds, now)
            left = _left(self._spent_by_all, self._total_share, now)
            self._spent_by_all = (left + seconds, now)

    def _wait(self, spent: tuple[float, float], share: float, now: float) -> float:
        return (_left(spent, share, now) - self._burst) / share


def _left(spent: tuple[float, float], share: float, now: float) -> float:
    """Of the time spent, what is not yet paid off."""
    seconds, at = spent
    return max(seconds - (now - at) * share, 0.0)
