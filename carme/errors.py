"""The errors that people see.

Each carries a message for the user (what is wrong, and where), a hint (what to do about it) and a
bounded `reason` that can be a metrics label. Anything else that is raised is a bug.
"""

from typing import Any


class CarmeError(Exception):
    """Base of all expected failures; raise one of those below."""

    reason = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(CarmeError):
    """A configuration file or the way Carme was set up is wrong."""

    reason = "config"


class InputError(CarmeError):
    """A request of a user or a program is not valid."""

    reason = "input"


class DeniedError(CarmeError):
    """The caller may not do this."""

    reason = "denied"


class UnavailableError(CarmeError):
    """Another service or program does not answer now; the same call may succeed later."""

    reason = "unavailable"


class BusyError(UnavailableError):
    """The user has reached a limit per user; the same call may succeed after `retry_seconds`."""

    reason = "busy"

    def __init__(self, message: str, hint: str = "", retry_seconds: int = 5) -> None:
        super().__init__(message, hint)
        self.retry_seconds = retry_seconds


class MissingError(CarmeError):
    """A program, a package or a named object does not exist."""

    reason = "missing"


_ERROR_CLASSES: dict[str, type[CarmeError]] = {
    error.reason: error
    for error in (ConfigError, InputError, DeniedError, UnavailableError, BusyError, MissingError)
}


def error_to_json(error: CarmeError) -> dict[str, Any]:
    """The JSON object in which the view and the helper send an error to another process."""
    fields = {"reason": error.reason, "message": error.message, "hint": error.hint}
    return {"error": fields}


def error_from_json(value: object) -> CarmeError | None:
    """The error in a JSON value from `error_to_json`; None if the value holds none.

    A reason that this release does not have becomes an UnavailableError.
    """
    fields = value.get("error") if isinstance(value, dict) else None
    if not isinstance(fields, dict):
        return None
    error_class = _ERROR_CLASSES.get(str(fields.get("reason")), UnavailableError)
    return error_class(str(fields.get("message", ""))[:4000], str(fields.get("hint", ""))[:1000])
