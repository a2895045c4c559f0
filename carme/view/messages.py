"""What travels between Carme's own processes: HTTP over unix sockets, errors as JSON. No I/O."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from carme.errors import (
    CarmeError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
)

_BY_REASON: dict[str, type[CarmeError]] = {
    error.reason: error
    for error in (ConfigError, InputError, DeniedError, UnavailableError, MissingError)
}
STATUS = {"input": 400, "denied": 403, "missing": 404, "config": 500, "unavailable": 503}
_PHRASE = {
    200: "OK",
    304: "Not Modified",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class ViewReply:
    """An HTTP answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    def json(self) -> Any:
        """The body's value; UnavailableError if it is not JSON, for then nobody we know spoke."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise UnavailableError("the answer is not JSON") from None


def error_json(error: CarmeError) -> dict[str, Any]:
    """The one form in which errors travel."""
    said = {"reason": error.reason, "message": error.message, "hint": error.hint}
    return {"error": said}


def error_from(value: object) -> CarmeError | None:
    """The error in a JSON answer; None if it holds none."""
    said = value.get("error") if isinstance(value, dict) else None
    if not isinstance(said, dict):
        return None
    kind = _BY_REASON.get(str(said.get("reason")), UnavailableError)
    return kind(str(said.get("message", ""))[:4000], str(said.get("hint", ""))[:1000])


def encode_request(
    method: str,
    path: str,
    query: Mapping[str, object] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A whole HTTP/1.1 request, one to a connection."""
    target = f"{path}?{urlencode(query)}" if query else path
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if content:
        lines.append("Content-Type: application/json")
    if content or method == "POST":
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def encode_reply(reply: ViewReply) -> bytes:
    """A whole HTTP/1.1 answer."""
    lines = [f"HTTP/1.1 {reply.status} {_PHRASE.get(reply.status, 'Other')}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (reply.headers or {}).items()]
    if reply.status != 304:
        lines += ["Content-Type: application/json", f"Content-Length: {len(reply.body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body


def decode_reply(raw: bytes) -> ViewReply:
    """The answer in all bytes of a connection; UnavailableError if it was cut short."""
    head, found, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not found or len(words) < 2 or not words[1].isdecimal():
        raise UnavailableError("the connection was closed without an answer")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _dechunk(body)
    elif headers.get("content-length", "").isdecimal():
        length = int(headers["content-length"])
        if len(body) < length:
            raise UnavailableError("the answer was cut short")
        body = body[:length]  # slurmrestd 22.05 writes a header of its own after the body
    return ViewReply(int(words[1]), body, headers)


def _dechunk(raw: bytes) -> bytes:
    parts = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            raise UnavailableError("the answer was cut short") from None
        if not length:
            break
        parts.append(raw[:length])
        raw = raw[length + 2 :]
    return b"".join(parts)
