"""Serves the application with Tornado's HTTP server.

The event loop reads requests and sends answers; threads run the application. A request with a body
is first admitted by its headers, so nothing of a stranger's body is kept. A connection that waits
for its client costs no thread, has a time limit, and makes room if there are too many.
"""

from __future__ import annotations

import asyncio
import io
import logging
import pwd
import tempfile
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, cast

from flask import Flask, Response
from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
    format_timestamp,
)
from tornado.iostream import IOStream, StreamClosedError

from carme.config import Config
from carme.config.services import LOOPBACK
from carme.service import wsgi
from carme.service.admission import Admission, admit, admit_at_once, declared_length, refuse_length
from carme.service.authentication import CALLER, PEER
from carme.system.connections import ConnectionPhase, ConnectionTable, TrackedConnection
from carme.system.network_peers import UNKNOWN, address_key, peer_name, user_key

log = logging.getLogger("carme.service")
_THREADS = 16
_MAX_CONNECTIONS = 500
_MAX_HEAD_BYTES = 32 * 1024
_HEAD_SECONDS = 10.0
_IDLE_SECONDS = 75.0
"""Between two requests of a client with a valid token or session."""
_ANSWER_SECONDS = 30.0
_BODY_SECONDS = 30.0
_BODY_BYTES_PER_SECOND = 100_000
"""A longer body has more time."""
_SPOOL_BYTES = 1_000_000
_LINGER_BYTES = 8_000_000
_LINGER_SECONDS = 5.0
"""What is still read of a refused body: closing earlier could make the client lose the answer."""


class ApplicationServer(HTTPServer):
    """The HTTP server of a Flask application; made and used in an event loop."""

    def initialize(self, app: Flask, address: tuple[str, int]) -> None:  # type: ignore[override]
        super().initialize(
            self,
            max_header_size=_MAX_HEAD_BYTES,
            idle_connection_timeout=2 * _IDLE_SECONDS,  # the table's limits are shorter
            max_body_size=0,
        )
        self.app, self.address = app, address
        self._proxies = _proxies(app.extensions["carme"].config)
        self.threads = ThreadPoolExecutor(_THREADS, "request")
        self.table = ConnectionTable(_MAX_CONNECTIONS)
        self._tracked: dict[IOStream, TrackedConnection] = {}
        self.exchanges: set[asyncio.Task[None]] = set()
        logging.getLogger("tornado.general").setLevel(logging.WARNING)  # strangers' malformed heads

    def peer(self, tracked: TrackedConnection, headers: HTTPHeaders) -> str:
        """Who asks, as a key for limits. The proxy speaks for many, and adds the address of its
        client at the end of X-Forwarded-For."""
        forwarded = headers.get("X-Forwarded-For", "").rpartition(",")[2]
        is_forwarded = forwarded and tracked.peer in self._proxies
        return address_key(forwarded) if is_forwarded else tracked.peer

    async def watch(self) -> None:
        """End connections whose time is over, until this task ends."""
        while True:
            await asyncio.sleep(1)
            self.table.close_expired()

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """A new connection; if there are too many, another one ends."""
        tracked = self.table.add(peer_name(stream.socket), stream.close, _HEAD_SECONDS)
        if tracked is None:
            stream.close()
            return
        self._tracked[stream] = tracked
        super().handle_stream(stream, address)

    def start_request(
        self,
        server_conn: object,  # noqa: ARG002
        request_conn: Any,
    ) -> HTTPMessageDelegate:
        """A connection waits for its next request."""
        tracked = self._tracked[request_conn.stream]
        seconds = _IDLE_SECONDS if tracked.is_known else _HEAD_SECONDS
        self.table.enter(tracked, ConnectionPhase.REQUEST, seconds)
        return HttpExchange(self, request_conn, tracked)

    def on_close(self, server_conn: object) -> None:
        """A connection has ended."""
        tracked = self._tracked.pop(cast(HTTP1ServerConnection, server_conn).stream)
        self.table.remove(tracked)
        super().on_close(server_conn)


def _proxies(config: Config) -> set[str]:
    """The proxy by its Unix user, or by the hub's address if it runs on another host."""
    keys = {address_key(config.hub.api_address)} - {LOOPBACK, UNKNOWN}  # others are there, too
    for user in ("carme-proxy", config.hub.user):  # deployed; on the one-machine cluster
        with suppress(KeyError):
            keys.add(user_key(pwd.getpwnam(user).pw_uid))
    return keys


class HttpExchange(HTTPMessageDelegate):
    """One request and its answer."""

    def __init__(
        self, server: ApplicationServer, connection: HTTP1Connection, tracked: TrackedConnection
    ) -> None:
        self._server, self._connection, self._tracked = server, connection, tracked
        self._stream = connection.stream
        self._environ: dict[str, Any] = {}
        self._body: IO[bytes] = io.BytesIO()
        self._received = 0
        self._admission: Admission | None = None
        self._is_refused = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        client = getattr(self._connection.context, "remote_ip", "")
        request = cast(RequestStartLine, start_line)
        self._environ = wsgi.make_environ(request, headers, client, self._server.address)
        self._environ[PEER] = self._server.peer(self._tracked, headers)
        self._enter(ConnectionPhase.WORK)
        if headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in headers:
            return None
        self._connection.set_max_body_size(2**62)  # counted here, to answer with 413
        if admission := admit_at_once(self._server.app, self._environ):
            self._receive(admission)
            return None
        return self._admit(headers)

    async def _admit(self, headers: HTTPHeaders) -> None:
        admission = await self._in_thread(admit, self._server.app, self._environ)
        if not isinstance(admission, Response):
            self._receive(admission)
            return
        self._refuse(admission)
        if "Expect" in headers:
            self._connection.finish()  # the client waits for this answer before it sends

    def _receive(self, admission: Admission) -> None:
        """Expect the body."""
        self._admission = admission
        if admission.most_bytes > _SPOOL_BYTES:
            self._body = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115
        self._tracked.is_known = True
        seconds = (declared_length(self._environ) or 0) / _BODY_BYTES_PER_SECOND
        self._enter(ConnectionPhase.BODY, _BODY_SECONDS + seconds)

    def data_received(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._is_refused:
            if self._received > _LINGER_BYTES:
                self._stream.close()
        elif self._admission and self._received > self._admission.most_bytes:
            most = self._admission.most_bytes
            self._received = 0
            self._refuse(refuse_length(self._server.app, self._environ, most))
        else:
            self._body.write(chunk)

    def _refuse(self, response: Response) -> None:
        """Answer now, and read the rest of the body for a moment without keeping it."""
        self._is_refused = True
        self._release()
        response.headers["Connection"] = "close"
        answer = wsgi.call(wsgi.as_application(response), self._environ)
        self._write_head(answer, answer.body)
        self._enter(ConnectionPhase.BODY, _LINGER_SECONDS)

    def finish(self) -> None:
        """The whole request is there."""
        if self._is_refused:
            self._connection.finish()
            return
        self._body.seek(0)
        self._environ["wsgi.input"] = self._body
        if self._environ.pop("HTTP_TRANSFER_ENCODING", None):
            self._environ["CONTENT_LENGTH"] = str(self._received)
        self._enter(ConnectionPhase.WORK)
        task = asyncio.get_running_loop().create_task(self._answer())
        self._server.exchanges.add(task)
        task.add_done_callback(self._server.exchanges.discard)

    def on_connection_close(self) -> None:
        """The client went away before the request was complete."""
        self._release()

    async def _answer(self) -> None:
        try:
            answer = await self._in_thread(wsgi.call, self._server.app, self._environ)
        except Exception:
            log.exception("%s %s", self._environ["REQUEST_METHOD"], self._environ["PATH_INFO"])
            self._stream.close()
            return
        finally:
            self._release()
        if CALLER in self._environ:
            self._tracked.is_known = True
        try:
            if answer.chunks is None:
                self._enter(ConnectionPhase.ANSWER, _ANSWER_SECONDS)
                self._write_head(answer, answer.body)
            else:
                await self._stream_chunks(answer)
            self._connection.finish()
        except (StreamClosedError, TimeoutError):
            self._stream.close()
        except Exception:
            log.exception("%s %s", self._environ["REQUEST_METHOD"], self._environ["PATH_INFO"])
            self._stream.close()

    async def _stream_chunks(self, answer: wsgi.WsgiAnswer) -> None:
        chunks = answer.chunks or iter(())
        self._stream.set_nodelay(True)
        try:
            self._write_head(answer)
            while True:
                if answer.needs_thread:
                    self._enter(ConnectionPhase.WORK)
                    chunk = await self._in_thread(next, chunks, None)
                else:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                if self._stream.closed():
                    raise StreamClosedError
                self._enter(ConnectionPhase.ANSWER, _ANSWER_SECONDS)
                # Tornado does not end this wait in every case when the connection closes.
                await asyncio.wait_for(self._connection.write(chunk), 2 * _ANSWER_SECONDS)
        finally:
            await self._in_thread(answer.close)

    def _write_head(self, answer: wsgi.WsgiAnswer, body: bytes = b"") -> None:
        answer.headers["Date"] = format_timestamp(time.time())
        line = ResponseStartLine("HTTP/1.1", answer.status, answer.reason)
        self._connection.write_headers(line, answer.headers, body or None)

    def _enter(self, phase: ConnectionPhase, seconds: float | None = None) -> None:
        self._server.table.enter(self._tracked, phase, seconds)

    def _in_thread(self, function: Any, *args: Any) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._server.threads, function, *args)

    def _release(self) -> None:
        """Give back what the body occupies."""
        admission, self._admission = self._admission, None
        if admission:
            admission.release()
        with suppress(OSError):
            self._body.close()
