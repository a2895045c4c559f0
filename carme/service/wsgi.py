"""Calls the WSGI application: makes its environment from a request's head, and holds its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from tornado.httputil import HTTPHeaders, RequestStartLine

Application = Callable[..., Iterable[bytes]]
CHUNK_BYTES = 256 * 1024
"""A client has a time limit for each part of this size."""
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class FileChunks:
    """A file as an answer: the server reads it while the client does, without a thread."""

    def __init__(self, file: IO[bytes], _size: int = 0) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk

    def close(self) -> None:
        self._file.close()


@dataclass
class WsgiAnswer:
    """What the application answered. `chunks` follow `body`, one after the other."""

    status: int
    reason: str
    headers: HTTPHeaders
    body: bytes = b""
    chunks: Iterator[bytes] | None = None
    close: Callable[[], None] = field(default=lambda: None)
    needs_thread: bool = False
    """Whether the next chunk may take long."""


def make_environ(
    start_line: RequestStartLine, headers: HTTPHeaders, client: str, server: tuple[str, int]
) -> dict[str, Any]:
    """The environment of PEP 3333, without a body."""
    target = start_line.path
    if not target.startswith("/"):  # http://host/path
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": start_line.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path.encode("latin-1")).decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": client,
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": start_line.version,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileChunks,
    }
    for name, value in headers.items():
        if "_" in name:
            continue  # would look like the header with a hyphen
        key = name.upper().replace("-", "_")
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
    return environ


def call(application: Application, environ: dict[str, Any]) -> WsgiAnswer:
    """The answer of the application; a short one is complete, others go on in chunks."""
    answers: list[WsgiAnswer] = []

    def start_response(
        status: str, headers: list[tuple[str, str]], _exc_info: Any = None
    ) -> Callable[[bytes], object]:
        code, _, reason = status.partition(" ")
        answers.append(WsgiAnswer(int(code), reason, HTTPHeaders()))
        for name, value in headers:
            answers[-1].headers.add(name, value)
        return _refuse_write

    chunks = application(environ, start_response)
    answer = answers[-1]
    answer.close = getattr(chunks, "close", answer.close)
    is_file = isinstance(chunks, FileChunks)
    has_length = "Content-Length" in answer.headers
    has_body = environ["REQUEST_METHOD"] != "HEAD" and answer.status not in _WITHOUT_BODY
    if has_body and (is_file or not has_length):
        answer.chunks, answer.needs_thread = iter(chunks), not is_file
        return answer
    try:
        body = b"".join(chunks) if has_body else b""
    except BaseException:
        answer.close()
        raise
    if len(body) > CHUNK_BYTES:
        answer.chunks = _parts(body)
    else:
        answer.body = body
        answer.close()
    return answer


def _parts(body: bytes) -> Iterator[bytes]:
    for first in range(0, len(body), CHUNK_BYTES):
        yield body[first : first + CHUNK_BYTES]


def _refuse_write(_: bytes) -> object:
    raise NotImplementedError("the application returns its body")
