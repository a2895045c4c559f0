"""Who sends a request, whether a change comes from our own page, and the request rate."""

from __future__ import annotations

import hmac
from urllib.parse import quote

from flask import request

from carme.errors import BusyError
from carme.service.context import current_context
from carme.service.hub_client import SESSION_COOKIE, Caller
from carme.service.problems import HttpProblem
from carme.system.guess_limits import TooManyGuessesError

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
USER_HEADER = "Carme-User"
CALLER = "carme.caller"
PEER = "carme.peer"
"""Keys of the WSGI environment: the caller, once authenticated; who connected, for limits."""


def authenticate() -> Caller:
    """The caller. Refuses with 401 without a valid token or session, with 403 a change that does
    not come from our own page, and with 429 above the request rate."""
    known: Caller | None = request.environ.get(CALLER)
    if known:
        return known
    caller = identify()
    _check_rate(caller.name if caller else f"from {_peer()}")
    if caller is None:
        raise HttpProblem(
            401, "no valid token and no session", WWW_Authenticate='token realm="carme"'
        )
    request.environ[CALLER] = caller
    return caller


def identify() -> Caller | None:
    """The caller by token or by browser session; None without either. BusyError for a peer that
    sent too many wrong tokens."""
    context = current_context()
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() in ("token", "bearer") and token:
        token = token.strip()
        if context.hub.is_own(token):
            name = request.headers.get(USER_HEADER, "")
            return Caller(name, False, "hub") if name else None
        user = user_of(token)
        return Caller(*user, "token") if user else None
    return None if "Authorization" in request.headers else _by_cookie()


def user_of(token: str) -> tuple[str, bool] | None:
    """(name, admin) of a token's user; None if the token is not valid. BusyError for a peer that
    sent too many wrong ones."""
    try:
        return current_context().hub.user_of(token, _peer())
    except TooManyGuessesError as error:
        raise BusyError(
            "too many wrong tokens came from you", "wait a moment", int(error.seconds) + 1
        ) from None


def _by_cookie() -> Caller | None:
    context = current_context()
    name = request.cookies.get(SESSION_COOKIE)
    token = context.sessions.token(name) if name else None
    if not name or not token:
        return None
    user = user_of(token)
    if user is None:
        context.sessions.close(name)
        return None
    if not _is_from_own_page(context.sessions.csrf(name)):
        raise HttpProblem(
            403,
            "this request does not come from a page of the service",
            "reload the page, or use a token instead of the browser's session",
        )
    return Caller(*user, "cookie")


def _peer() -> str:
    return str(request.environ.get(PEER) or request.remote_addr)


def _is_from_own_page(csrf: str) -> bool:
    """Whether the browser sends this for a page of the service, or for somebody who opens one."""
    headers = request.headers
    is_own = headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    if request.method in SAFE:
        return is_own or headers.get("Sec-Fetch-Mode") == "navigate"
    return is_own and hmac.compare_digest(csrf.encode(), headers.get("X-CSRF-Token", "").encode())


def _check_rate(key: str) -> None:
    context = current_context()
    wait = context.request_rates.take(quote(key))
    if wait:
        most = context.config.service.requests_per_minute
        raise HttpProblem(
            429, f"more than {most} requests a minute", Retry_After=str(int(wait) + 1)
        )
