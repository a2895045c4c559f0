"""HTTP requests to a server that listens on a unix socket, such as carme-view and slurmrestd."""

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from carme.errors import UnavailableError

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response; header names match in any case."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        """The body's value; UnavailableError if it is not JSON."""
        try:
            return json.loads(self.body.decode("utf-8", errors="replace"))
        except ValueError:
            raise UnavailableError(f"the response (status {self.status}) is not JSON") from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def request(
    path: Path,
    method: str,
    target: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float,
    hint: str = "",
) -> HttpResponse:
    """The response to one request on a connection of its own; `body` is sent as JSON.

    Raises UnavailableError with `hint` if no complete response arrives within `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    address = f"{target}?{urlencode(query)}" if query else target
    content = None if body is None else json.dumps(body).encode()
    fields = {"Connection": "close", "Accept": "application/json", **(headers or {})}
    if content is not None:
        fields["Content-Type"] = "application/json"
    try:
        with closing(_UnixConnection(path, timeout_seconds)) as connection:
            connection.request(method, address, content, fields)
            stream = connection.sock
            with connection.getresponse() as response:
                received = bytearray()
                while chunk := response.read1(_CHUNK_BYTES):
                    received += chunk
                    stream.settimeout(max(0.01, deadline - time.monotonic()))
                if response.length:
                    raise http.client.IncompleteRead(bytes(received), response.length)
                return HttpResponse(response.status, response.headers, bytes(received))
    except TimeoutError:
        raise UnavailableError(f"{path} did not answer in time", hint) from None
    except OSError as error:
        problem = os.strerror(error.errno) if error.errno else str(error)
        raise UnavailableError(f"{path}: {problem}", hint) from error
    except http.client.HTTPException as error:
        problem = f"the response cannot be read ({type(error).__name__})"
        raise UnavailableError(f"{path}: {problem}", hint) from error
