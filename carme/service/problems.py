"""Errors as application/problem+json (RFC 9457): what is wrong, in which field, what to change."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from flask import Flask, Response, request
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from carme.errors import (
    BusyError,
    CarmeError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
)
from carme.validation import explain

log = logging.getLogger("carme.service")

STATUS: dict[type[CarmeError], int] = {
    BusyError: 429,
    InputError: 422,
    DeniedError: 403,
    MissingError: 404,
    UnavailableError: 503,
    ConfigError: 422,
}
RETRY_SECONDS = 5
"""The Retry-After of a 503."""
_HINTS = {
    400: "send valid JSON and headers",
    401: "send Authorization: token TOKEN (make one on the hub's Token page), or log in",
    404: "see the list of addresses in openapi.json",
    405: "see openapi.json for the methods of this address",
    413: "send less, or ask an administrator to raise the limit",
    415: "send Content-Type: application/json",
    429: "wait a moment before asking again",
}


class Problem(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    """What is wrong."""
    hint: str = ""
    """What to change."""
    reason: str = ""
    """A reason for programs: input, denied, missing, busy, unavailable, config, error."""
    fields: list[str] = []
    """A line for each wrong field."""


class HttpProblem(Exception):
    """An error response for which there is no CarmeError."""

    def __init__(self, status: int, detail: str, hint: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.hint, self.headers = status, detail, hint, headers


_TITLES = {
    400: "Bad request", 401: "Not logged in", 403: "Not allowed", 404: "Not found",
    405: "Method not allowed", 413: "Too large", 415: "Unsupported media type",
    422: "Not valid", 429: "Too many requests", 500: "Internal error", 503: "Not available now",
}  # fmt: skip


def answer(
    status: int, detail: str, hint: str = "", reason: str = "", fields: list[str] | None = None
) -> Response:
    """The response for a problem."""
    problem = Problem(
        title=_TITLES.get(status, "Error"), status=status, detail=detail,
        hint=hint or _HINTS.get(status, ""), reason=reason, fields=fields or [],
    )  # fmt: skip
    response = Response(problem.model_dump_json(), status, mimetype="application/problem+json")
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def install(app: Flask) -> None:
    """Answer every error of the application in this form."""

    @app.errorhandler(CarmeError)
    def expected(error: CarmeError) -> Response:
        status = next((s for kind, s in STATUS.items() if isinstance(error, kind)), 500)
        response = answer(status, error.message, error.hint, error.reason)
        if isinstance(error, BusyError):
            response.headers["Retry-After"] = str(error.retry_seconds)
        return response

    @app.errorhandler(ValidationError)
    def invalid(error: ValidationError) -> Response:
        lines = explain(error)[:20]
        return answer(422, lines[0], "correct the fields named", "input", lines)

    @app.errorhandler(HttpProblem)
    def refused(error: HttpProblem) -> Response:
        response = answer(error.status, error.detail, error.hint, "denied")
        response.headers.update({k.replace("_", "-"): v for k, v in error.headers.items()})
        return response

    @app.errorhandler(SQLAlchemyError)
    def database(error: SQLAlchemyError) -> Response:
        log.error("database: %s", str(error).splitlines()[0])
        return answer(
            503, "the service's database does not answer", "try again in a minute", "unavailable"
        )

    @app.errorhandler(HTTPException)
    def http(error: HTTPException) -> Any:
        if error.code is None or error.code < 400:
            return error
        response = answer(error.code, error.description or error.name)
        for name, value in error.get_headers():
            if name.lower() in ("allow", "retry-after"):
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    def bug(error: Exception) -> Response:
        log.exception("%s %s", request.method, request.path, exc_info=error)
        return answer(500, "internal error", "tell an administrator", "error")
