"""Who sends a request, whether a change comes from our own page, and the request rate."""

from __future__ import annotations

import hmac
from urllib.parse import quote

from flask import g, request

from carme.service.context import current_context
from carme.service.hub_client import SESSION_COOKIE, Caller
from carme.service.problems import HttpProblem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
USER_HEADER = "Carme-User"


def authenticate() -> Caller:
    """The caller. Refuses with 401 without a valid token or session, with 403 a change that does
    not come from our own page, and with 429 above the request rate."""
    caller: Caller | None = g.get("caller") or identify()
    _check_rate(caller.name if caller else f"from {request.remote_addr}")
    if caller is None:
        raise HttpProblem(
            401, "no valid token and no session", WWW_Authenticate='token realm="carme"'
        )
    g.caller = caller
    return caller


def identify() -> Caller | None:
    """The caller by token or by browser session; None without either."""
    context = current_context()
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() in ("token", "bearer") and token:
        token = token.strip()
        if context.hub.is_own(token):
            name = request.headers.get(USER_HEADER, "")
            return Caller(name, False, "hub") if name else None
        user = context.hub.user_of(token)
        return Caller(*user, "token") if user else None
    return None if "Authorization" in request.headers else _by_cookie()


def _by_cookie() -> Caller | None:
    context = current_context()
    name = request.cookies.get(SESSION_COOKIE)
    token = context.sessions.token(name) if name else None
    if not name or not token:
        return None
    user = context.hub.user_of(token)
    if user is None:
        context.sessions.close(name)
        return None
    if request.method not in SAFE:
        csrf_token = request.headers.get("X-CSRF-Token", "").encode()
        is_valid = hmac.compare_digest(context.sessions.csrf(name).encode(), csrf_token)
        if not is_valid or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise HttpProblem(
                403,
                "this change does not come from a page of the service",
                "reload the page, or use a token instead of the browser's session",
            )
    return Caller(*user, "cookie")


def _check_rate(key: str) -> None:
    context = current_context()
    wait = context.request_rates.take(quote(key))
    if wait:
        most = context.config.service.requests_per_minute
        raise HttpProblem(
            429, f"more than {most} requests a minute", Retry_After=str(int(wait) + 1)
        )
