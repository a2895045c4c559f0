"""What may be known of a request before its body is read: who sends it, and how long it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_cookie

from carme.errors import CarmeError
from carme.service.authentication import USER_HEADER, authenticate
from carme.service.context import ServiceContext, current_context
from carme.service.hub_client import SESSION_COOKIE

_MAX_DIGITS = 15
_USER_KEY = "HTTP_" + USER_HEADER.upper().replace("-", "_")


@dataclass(frozen=True)
class Admission:
    """The body may be read: `most_bytes` of it. Call `release` after the request."""

    most_bytes: int
    release: Callable[[], None]


def declared_length(environ: dict[str, Any]) -> int | None:
    """The length of the body, if the client tells it."""
    text = environ.get("CONTENT_LENGTH", "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def user_at_once(app: Flask, environ: dict[str, Any]) -> str:
    """The user whose token or session was right a moment ago, without waiting for the hub or a
    thread; empty if the hub has to be asked."""
    context: ServiceContext = app.extensions["carme"]
    if "HTTP_AUTHORIZATION" in environ:
        token = environ["HTTP_AUTHORIZATION"].partition(" ")[2].strip()
        if context.hub.is_own(token):
            return str(environ.get(_USER_KEY, ""))
    else:
        name = parse_cookie(environ).get(SESSION_COOKIE)
        token = context.sessions.token(name) if name else None
    return context.hub.known_user(token) if token else ""


def admit_at_once(app: Flask, environ: dict[str, Any], user: str) -> Admission | Response | None:
    """The decision on a short body of `user_at_once`; None if `admit` has to decide."""
    context: ServiceContext = app.extensions["carme"]
    most, length = context.config.service.most_body_bytes, declared_length(environ)
    if not user or "HTTP_AUTHORIZATION" not in environ or length is None or length > most:
        return None
    try:
        return Admission(most, context.bodies.enter(user).leave)
    except CarmeError as error:
        return refuse(app, environ, error)


def admit(app: Flask, environ: dict[str, Any]) -> Admission | Response:
    """Whether to read the body of the request with these headers, or the response that refuses it.
    Every body needs a valid token or session, whatever the address."""
    with app.request_context(environ):
        try:
            app.preprocess_request()  # checks the length, if the client tells it
            caller = authenticate()
            if request.routing_exception:
                raise request.routing_exception
            context = current_context()
            most = request.max_content_length or 0
            is_file = most > context.config.service.most_body_bytes
            gate = context.uploads if is_file else context.bodies
            return Admission(most, gate.enter(caller.name).leave)
        except Exception as error:
            return _answer(app, error)


def refuse_length(app: Flask, environ: dict[str, Any], most_bytes: int) -> Response:
    """The response to a body that turns out to be too long."""
    error = RequestEntityTooLarge(f"the body is larger than {most_bytes:,} bytes")
    return refuse(app, environ, error)


def refuse(app: Flask, environ: dict[str, Any], error: Exception) -> Response:
    """The response to a request that ends with this error before the application has it."""
    with app.request_context(environ):
        return _answer(app, error)


def _answer(app: Flask, error: Exception) -> Response:
    response = app.make_response(app.handle_user_exception(error))
    return app.process_response(response)
