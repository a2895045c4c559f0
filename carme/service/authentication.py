"""Who sends a request, whether a change comes from our own page, and the request rate."""

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
    caller: Caller | None = g.get("who")
    if caller is None:
        context = current_context()
        caller = _by_token(context) or _by_cookie(context)
        if caller is None:
            _slow_down(context, f"from {request.remote_addr}")
            raise Refused(
                401, "no valid token and no session", WWW_Authenticate='token realm="carme"'
            )
        g.who = caller
    _slow_down(current_context(), caller.name)
    return caller


def visitor() -> Caller | None:
    """Who looks at a page; None if nobody is logged in."""
    context = current_context()
    return _by_token(context) or _by_cookie(context)


def _by_token(context: ServiceContext) -> Caller | None:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() not in ("token", "bearer") or not token:
        return None
    token = token.strip()
    if context.hub.is_own(token):
        name = request.headers.get(USER_HEADER, "")
        return Caller(name, False, "hub") if name else None
    user = context.hub.user_of(token)
    return Caller(*user, "token") if user else None


def _by_cookie(context: ServiceContext) -> Caller | None:
    name = request.cookies.get(COOKIE)
    token = context.sessions.token(name) if name else None
    if not name or not token or "Authorization" in request.headers:
        return None
    user = context.hub.user_of(token)
    if user is None:
        context.sessions.close(name)
        return None
    if request.method not in SAFE:
        csrf_token = request.headers.get("X-CSRF-Token", "")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if not context.sessions.csrf_holds(name, csrf_token) or site != "same-origin":
            raise Refused(
                403,
                "this change does not come from a page of the service",
                "reload the page, or use a token instead of the browser's session",
            )
    return Caller(*user, "cookie")


def _slow_down(context: ServiceContext, key: str) -> None:
    wait = context.buckets.take(quote(key))
    if wait:
        most = current_app.config["CARME"].service.requests_per_minute
        raise Refused(429, f"more than {most} requests a minute", Retry_After=str(int(wait) + 1))
