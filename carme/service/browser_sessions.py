"""Browser sessions: a random name in the cookie, the hub's token here, and its CSRF token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading

from cachetools import TTLCache

COOKIE = "carme-service"
STATE_COOKIE = "carme-service-login"
SECONDS = 12 * 3600
_MAX_SESSIONS = 10_000


class BrowserSessions:
    """Stored in memory: after a restart the hub logs people in again without asking them."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._tokens: TTLCache[str, str] = TTLCache(_MAX_SESSIONS, SECONDS)
        self._lock = threading.Lock()

    def open(self, token: str) -> str:
        """A new session for the hub's token; its name for the cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens[name] = token
        return name

    def token(self, name: str) -> str | None:
        """The session's token; None when it is over."""
        with self._lock:
            return self._tokens.get(name)

    def close(self, name: str) -> None:
        """End it."""
        with self._lock:
            self._tokens.pop(name, None)

    def csrf(self, name: str) -> str:
        """The token that a page of this session sends with every change."""
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()

    def csrf_holds(self, name: str, token: str) -> bool:
        """Whether the CSRF token is the session's."""
        return hmac.compare_digest(self.csrf(name).encode(), token.encode())
