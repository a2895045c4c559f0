"""The hub's tokens: whose they are, the log-in that gives one, and which browser session has which.
JupyterHub's HubOAuth speaks with the hub."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlencode

from cachetools import TTLCache
from jupyterhub.services.auth import HubOAuth
from tornado.web import HTTPError

from carme.config import Config
from carme.errors import UnavailableError
from carme.system.guess_limits import GuessLimiter

NAME = "carme"
SESSION_COOKIE = "carme-service"
LOGIN_COOKIE = "carme-service-login"
SESSION_SECONDS = 12 * 3600
_MAX_SESSIONS = 10_000
_MAX_SESSIONS_PER_USER = 50
"""Log-ins of one user that are valid at a time; further ones replace the user's oldest."""
_TIMEOUT_SECONDS = 1.5
_MAX_TOKENS = 10_000
_MAX_TOKEN_LENGTH = 200


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    name: str
    admin: bool
    via: Literal["token", "cookie", "hub"]

    def may_see(self, owner: str) -> bool:
        """Users see what is theirs, admins see all."""
        return self.admin or owner == self.name


class BrowserSessions:
    """Log-ins of browsers: the cookie holds a random name, the hub's token stays in this process.

    After a restart the hub logs users in again without asking them.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._tokens: TTLCache[str, tuple[str, str]] = TTLCache(_MAX_SESSIONS, SESSION_SECONDS)
        """User and token by the name in the cookie, the oldest first."""
        self._lock = threading.Lock()

    def open(self, user: str, token: str) -> str:
        """A new session for the hub's token of a user; returns its name for the cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            own = [key for key, (owner, _) in self._tokens.items() if owner == user]
            for oldest in own[: len(own) + 1 - _MAX_SESSIONS_PER_USER]:
                del self._tokens[oldest]
            self._tokens[name] = (user, token)
        return name

    def token(self, name: str) -> str | None:
        """The session's token; None if the session has ended."""
        with self._lock:
            session = self._tokens.get(name)
        return session[1] if session else None

    def close(self, name: str) -> None:
        """End the session."""
        with self._lock:
            self._tokens.pop(name, None)

    def csrf(self, name: str) -> str:
        """The token that a page of this session sends with every change."""
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


class HubClient:
    """The hub's answers about tokens. `token` is the service's own, and its OAuth secret."""

    def __init__(self, config: Config, token: str) -> None:
        hub = config.hub
        self.prefix = f"{hub.base_url}services/{NAME}"
        """The path of the service at the hub's public address."""
        self.hub_prefix = f"{hub.base_url}hub"
        """The path of the hub's own pages."""
        self._token = token
        self._oauth = HubOAuth(
            api_url=f"http://{hub.api_address}:{hub.api_port}{self.hub_prefix}/api",
            api_token=token or "unset",  # HubOAuth refuses an empty one
            hub_host=hub.origin,
            hub_prefix=f"{self.hub_prefix}/",
            oauth_client_id=f"service-{NAME}",
            oauth_redirect_uri=f"{hub.origin}{self.prefix}/oauth_callback",
            access_scopes={f"access:services!service={NAME}"},
        )
        # Not the cache of HubOAuth: it has no limit. Wrong tokens have their own, so that a flood
        # of them does not push out the right ones.
        seconds = config.service.token_cache_seconds
        self._users: TTLCache[str, tuple[str, bool]] = TTLCache(_MAX_TOKENS, seconds)
        self._wrong: TTLCache[str, None] = TTLCache(_MAX_TOKENS, seconds)
        self._once_right: TTLCache[str, None] = TTLCache(_MAX_TOKENS, SESSION_SECONDS)
        self._cache_lock = threading.Lock()
        self._guesses = GuessLimiter()

    def is_own(self, token: str) -> bool:
        """Whether it is the service's own token, which the hub sends with a user's name."""
        return bool(self._token) and hmac.compare_digest(token.encode(), self._token.encode())

    def known_user(self, token: str) -> str:
        """The user of a token that was valid a moment ago, without asking the hub; else empty."""
        with self._cache_lock:
            return self._users.get(_digest(token), ("", False))[0]

    def user_of(self, token: str, peer: str = "") -> tuple[str, bool] | None:
        """(name, admin) of a token's user; None if the token is not valid here. Briefly cached.

        `peer` sends it; TooManyGuessesError if the peer sent too many wrong ones, unless this one
        was right before.
        """
        digest = _digest(token)
        with self._cache_lock:
            if user := self._users.get(digest):
                return user
            if digest in self._wrong:
                return None
            was_right = digest in self._once_right
        if not was_right:
            self._guesses.check(peer)
        began = time.monotonic()
        user = self._user_of(token)
        with self._cache_lock:
            if user:
                self._users[digest], self._once_right[digest] = user, None
            else:
                self._wrong[digest] = None
        if not user:
            self._guesses.charge(peer, time.monotonic() - began)
        return user

    def _user_of(self, token: str) -> tuple[str, bool] | None:
        if not token.isascii() or not token.isprintable() or len(token) > _MAX_TOKEN_LENGTH:
            return None
        try:
            user = self._wait(self._oauth.user_for_token(token, use_cache=False, sync=False))
        except HTTPError:
            raise _unavailable() from None
        if not user or user.get("kind") != "user":
            return None
        if not self._oauth.check_scopes(self._oauth.access_scopes, user):
            return None
        return str(user["name"]), bool(user.get("admin"))

    def login_url(self, state: str) -> tuple[str, str]:
        """Where to send a browser that is not logged in, and the PKCE verifier for `token_for`."""
        verifier, challenge, method = self._oauth.generate_pkce_code_challenge()
        query = {"state": state, "code_challenge": challenge, "code_challenge_method": method}
        return f"{self._oauth.login_url}&{urlencode(query)}", verifier

    def token_for(self, code: str, verifier: str) -> str | None:
        """The token that the hub gives for a log-in's code; None if the hub refuses the code."""
        try:
            token = self._wait(self._oauth.token_for_code(code, code_verifier=verifier, sync=False))
        except HTTPError as error:
            # HubOAuth raises a 500 both for a refusal and when the hub does not answer.
            if error.status_code == 500 and "check authorization" in (error.log_message or ""):
                return None
            raise _unavailable() from None
        return str(token)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call of HubOAuth. Its own `sync=True` makes one call at a time, without
        a time limit: callers would queue up behind a frozen hub."""
        limited = asyncio.wait_for(coroutine, _TIMEOUT_SECONDS)
        try:
            return asyncio.run_coroutine_threadsafe(limited, self._loop).result()
        except TimeoutError:
            raise _unavailable() from None

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Runs in a thread of its own; made on first use, so that a server may fork before."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="hub", daemon=True).start()
        return loop


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _unavailable() -> UnavailableError:
    return UnavailableError(
        "the hub does not answer, so tokens cannot be checked", "try again in a minute"
    )
