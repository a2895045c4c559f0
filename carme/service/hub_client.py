"""Who is there: the hub's word on tokens, kept for a moment, and its OAuth login."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

import requests

from carme.config import Config
from carme.errors import UnavailableError

NAME = "carme"
PREFIX = f"/services/{NAME}"
CALLBACK = f"{PREFIX}/oauth_callback"
_SECONDS = 1.5
_MOST_KEPT = 10_000
_SCOPES = frozenset({"access:services", f"access:services!service={NAME}"})


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    name: str
    admin: bool
    via: Literal["token", "cookie", "hub"]

    def may_see(self, owner: str) -> bool:
        """People see their own, admins all."""
        return self.admin or owner == self.name


class HubClient:
    """The hub as a service sees it. `token` is the service's own, and its OAuth secret."""

    def __init__(
        self, config: Config, token: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        hub = config.hub
        self._api = f"http://{hub.api_address}:{hub.api_port}/hub/api"
        self._public = hub.url.rstrip("/")
        self._token = token
        self._keep = config.service.token_cache_seconds
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, tuple[str, bool] | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._web = requests.Session()
        self._web.trust_env = False

    def is_own(self, token: str) -> bool:
        """Whether it is the service's own token, which the hub uses to ask for a user."""
        return bool(self._token) and hmac.compare_digest(token.encode(), self._token.encode())

    def user_of(self, token: str) -> tuple[str, bool] | None:
        """(name, admin) of the token's user; None if it is not valid here."""
        key = hashlib.sha256(token.encode()).hexdigest()
        with self._lock:
            at, found = self._known.get(key, (float("-inf"), None))
        if self._clock() - at < self._keep:
            return found
        found = self._ask(token)
        with self._lock:
            self._known[key] = (self._clock(), found)
            self._known.move_to_end(key)
            while len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return found

    def forget(self, token: str) -> None:
        """Ask again next time."""
        with self._lock:
            self._known.pop(hashlib.sha256(token.encode()).hexdigest(), None)

    def _ask(self, token: str) -> tuple[str, bool] | None:
        if not token.isascii() or not token.isprintable() or len(token) > 200:
            return None
        answer = self._call("GET", "/user", headers={"Authorization": f"token {token}"})
        if answer.status_code in (401, 403):
            return None
        if answer.status_code != 200:
            raise UnavailableError(
                f"the hub answered {answer.status_code} on a token", "try again in a moment"
            )
        model: dict[str, Any] = answer.json()
        if model.get("kind") != "user" or not _SCOPES & set(model.get("scopes", ())):
            return None
        return str(model["name"]), bool(model.get("admin"))

    def login_url(self, state: str) -> str:
        """Where to send a browser that is not logged in."""
        query = {
            "client_id": f"service-{NAME}",
            "redirect_uri": CALLBACK,
            "response_type": "code",
            "state": state,
        }
        return f"{self._public}/hub/api/oauth2/authorize?{urlencode(query)}"

    def token_for(self, code: str) -> str | None:
        """The token that the hub gives for a login's code."""
        form = {
            "client_id": f"service-{NAME}",
            "client_secret": self._token,
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": CALLBACK,
        }
        answer = self._call("POST", "/oauth2/token", data=form)
        if answer.status_code != 200:
            return None
        token = answer.json().get("access_token")
        return str(token) if token else None

    def _call(self, method: str, path: str, **how: Any) -> requests.Response:
        try:
            return self._web.request(method, f"{self._api}{path}", timeout=_SECONDS, **how)
        except requests.RequestException:
            raise UnavailableError(
                "the hub does not answer, so nobody can be let in", "try again in a minute"
            ) from None
