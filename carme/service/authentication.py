"""The door: who asks, whether a change comes from our own page, how often, how much."""

from __future__ import annotations

from urllib.parse import quote

from flask import current_app, g, request

from carme.service.browser_sessions import COOKIE
from carme.service.context import ServiceContext, current_context
from carme.service.hub_client import Caller
from carme.service.problems import Refused

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
USER_HEADER = "Carme-User"


def authenticate() -> Caller:
    """The caller; 401 without a valid token or session, 403 for a change from elsewhere, 429."""
    found: Caller | None = g.get("who")
    if found is None:
        here = current_context()
        found = _by_token(here) or _by_cookie(here)
        if found is None:
            _slow_down(here, f"from {request.remote_addr}")
            raise Refused(
                401, "no valid token and no session", WWW_Authenticate='token realm="carme"'
            )
        g.who = found
    _slow_down(current_context(), found.name)
    return found


def visitor() -> Caller | None:
    """Who looks at a page; None if nobody is logged in."""
    here = current_context()
    return _by_token(here) or _by_cookie(here)


def _by_token(here: ServiceContext) -> Caller | None:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() not in ("token", "bearer") or not token:
        return None
    token = token.strip()
    if here.hub.is_own(token):
        name = request.headers.get(USER_HEADER, "")
        return Caller(name, False, "hub") if name else None
    user = here.hub.user_of(token)
    return Caller(*user, "token") if user else None


def _by_cookie(here: ServiceContext) -> Caller | None:
    name = request.cookies.get(COOKIE)
    token = here.sessions.token(name) if name else None
    if not name or not token or "Authorization" in request.headers:
        return None
    user = here.hub.user_of(token)
    if user is None:
        here.sessions.close(name)
        return None
    if request.method not in SAFE:
        given = request.headers.get("X-CSRF-Token", "")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if not here.sessions.csrf_holds(name, given) or site != "same-origin":
            raise Refused(
                403,
                "this change does not come from a page of the service",
                "reload the page, or use a token instead of the browser's session",
            )
    return Caller(*user, "cookie")


def _slow_down(here: ServiceContext, key: str) -> None:
    wait = here.buckets.take(quote(key))
    if wait:
        most = current_app.config["CARME"].service.requests_per_minute
        raise Refused(429, f"more than {most} requests a minute", Retry_After=str(int(wait) + 1))
