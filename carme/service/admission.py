"""What may be known of a request before its body is read: who sends it, and how long it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from carme.service.authentication import authenticate
from carme.service.context import ServiceContext, current_context

_MAX_DIGITS = 15


@dataclass(frozen=True)
class Admission:
    """The body may be read: `most_bytes` of it. Call `release` after the request."""

    most_bytes: int
    release: Callable[[], None]


def declared_length(environ: dict[str, Any]) -> int | None:
    """The length of the body, if the client tells it."""
    text = environ.get("CONTENT_LENGTH", "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def admit_at_once(app: Flask, environ: dict[str, Any]) -> Admission | None:
    """The admission of a short body whose token was right a moment ago, without waiting for the
    hub or a thread; None if `admit` has to decide."""
    context: ServiceContext = app.extensions["carme"]
    most, length = context.config.service.most_body_bytes, declared_length(environ)
    token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")[2].strip()
    if length is None or length > most or not context.hub.is_known(token):
        return None
    return Admission(most, _nothing)


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
            most, release = request.max_content_length or 0, _nothing
            if most > context.config.service.most_body_bytes:
                release = context.uploads.enter(caller.name).leave
            return Admission(most, release)
        except Exception as error:
            return _answer(app, error)


def refuse_length(app: Flask, environ: dict[str, Any], most_bytes: int) -> Response:
    """The response to a body that turns out to be too long."""
    with app.request_context(environ):
        return _answer(app, RequestEntityTooLarge(f"the body is larger than {most_bytes:,} bytes"))


def _answer(app: Flask, error: Exception) -> Response:
    response = app.make_response(app.handle_user_exception(error))
    return app.process_response(response)


def _nothing() -> None:
    """Nothing to give back."""
