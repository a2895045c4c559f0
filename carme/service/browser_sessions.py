"""Browser sessions: a random name in the cookie, the hub's token here, and its CSRF word."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

COOKIE = "carme-service"
STATE_COOKIE = "carme-service-login"
SECONDS = 12 * 3600
_MOST = 10_000


class BrowserSessions:
    """Kept in memory: after a restart the hub logs people in again without asking them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, token: str) -> str:
        """A new session for the hub's token; its name for the cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._kept[name] = (self._clock(), token)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return name

    def token(self, name: str) -> str | None:
        """The session's token; None when it is over."""
        with self._lock:
            at, token = self._kept.get(name, (float("-inf"), ""))
            if self._clock() - at > SECONDS:
                self._kept.pop(name, None)
                return None
        return token

    def close(self, name: str) -> None:
        """End it."""
        with self._lock:
            self._kept.pop(name, None)

    def csrf(self, name: str) -> str:
        """What a page of this session sends with every change."""
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()

    def csrf_holds(self, name: str, given: str) -> bool:
        """Whether the word is the session's."""
        return hmac.compare_digest(self.csrf(name).encode(), given.encode())
