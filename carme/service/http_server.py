"""Serves the application with Tornado's HTTP server.

The event loop reads requests and sends answers; threads run the application. Users take turns to
have a thread, and so do the peers of requests whose user is not known yet. A request with a body is
first admitted by its headers, so nothing of a stranger's body is kept. A connection that waits for
its client or its turn costs no thread, has a time limit for its client, and makes room if there are
too many.
"""

from __future__ import annotations

import asyncio
import io
import logging
import pwd
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

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
from carme.errors import CarmeError
from carme.service import wsgi
from carme.service.admission import (
    Admission,
    admit,
    admit_at_once,
    refuse,
    refuse_length,
    user_at_once,
)
from carme.service.authentication import CALLER, PEER
from carme.service.context import SERVER_THREADS, ServiceContext
from carme.system.connections import ConnectionPhase, ConnectionTable, TrackedConnection
from carme.system.network_peers import UNKNOWN, address_key, peer_name, user_key

T = TypeVar("T")
log = logging.getLogger("carme.service")
_MAX_CONNECTIONS = 500
_MAX_HEAD_BYTES = 32 * 1024
_HEAD_SECONDS = 10.0
_IDLE_SECONDS = 75.0
"""Between two requests of a client with a valid token or session."""
_ANSWER_SECONDS = 30.0
_BODY_SECONDS = 30.0
_BODY_STEP_BYTES = 3_000_000
"""The body has that time again after each of these steps: 100 KB a second."""
_SPOOL_BYTES = 1_000_000
_LINGER_BYTES = 8_000_000
_LINGER_SECONDS = 5.0
"""What is still read of a refused body: closing earlier could make the client lose the answer."""


class ApplicationServer(HTTPServer):
    """The HTTP server of a Flask application; made and used in an event loop."""

    def initialize(  # type: ignore[override]
        self, app: Flask, address: tuple[str, int], most_connections: int = _MAX_CONNECTIONS
    ) -> None:
        super().initialize(
            self,
            max_header_size=_MAX_HEAD_BYTES,
            idle_connection_timeout=2 * _IDLE_SECONDS,  # the table's limits are shorter
            max_body_size=0,
        )
        self.app, self.address = app, address
        self.context: ServiceContext = app.extensions["carme"]
        self._proxies = _proxies(self.context.config)
        self.threads = ThreadPoolExecutor(SERVER_THREADS, "request")
        self.table = ConnectionTable(most_connections, proxies=self._proxies)
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
        self._received = self._step_bytes = 0
        self._admission: Admission | None = None
        self._is_refused = False
        self._task: asyncio.Task[None] | None = None
        self._has_thread = False
        self._written: asyncio.Future[None] | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        client = getattr(self._connection.context, "remote_ip", "")
        request = cast(RequestStartLine, start_line)
        self._environ = wsgi.make_environ(request, headers, client, self._server.address)
        self._environ[PEER] = self._server.peer(self._tracked, headers)
        if headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in headers:
            return None
        self._connection.set_max_body_size(2**62)  # counted here, to answer with 413
        admission = admit_at_once(self._server.app, self._environ, self._find_user())
        if admission is None:
            return self._admit()
        self._begin_body(admission)
        return None

    def _find_user(self) -> str:
        """The user if known by now; the connection is theirs, or its peer's."""
        caller = self._environ.get(CALLER)
        user = caller.name if caller else user_at_once(self._server.app, self._environ)
        self._tracked.client = f"user {user}" if user else self._environ[PEER]
        return user

    async def _admit(self) -> None:
        try:
            admission = await self._in_turn(admit, self._server.app, self._environ)
        except CarmeError as error:
            admission = refuse(self._server.app, self._environ, error)
        self._begin_body(admission)

    def _begin_body(self, admission: Admission | Response) -> None:
        """Expect the body, or refuse it."""
        if isinstance(admission, Response):
            self._refuse(admission)
            if "HTTP_EXPECT" in self._environ:
                self._connection.finish()  # the client waits for this answer before it sends
            return
        self._admission = admission
        if admission.most_bytes > _SPOOL_BYTES:
            self._body = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115
        self._tracked.is_known = True
        self._enter(ConnectionPhase.BODY, _BODY_SECONDS)

    def data_received(self, chunk: bytes) -> None:
        self._received += len(chunk)
        self._step_bytes += len(chunk)
        if self._is_refused:
            if self._received > _LINGER_BYTES:
                self._stream.close()
        elif self._admission and self._received > self._admission.most_bytes:
            most = self._admission.most_bytes
            self._received = 0
            self._refuse(refuse_length(self._server.app, self._environ, most))
        else:
            self._body.write(chunk)
            if self._step_bytes >= _BODY_STEP_BYTES:
                self._step_bytes = 0
                self._enter(ConnectionPhase.BODY, _BODY_SECONDS)

    def _refuse(self, response: Response) -> None:
        """Answer now, and read the rest of the body for a moment without keeping it."""
        self._is_refused = True
        self._release()
        self._enter(ConnectionPhase.BODY, _LINGER_SECONDS)
        response.headers["Connection"] = "close"
        answer = wsgi.call(response, self._environ)
        self._write_head(answer, answer.body)

    def _end_refused(self) -> None:
        """End the connection once the refusal is sent."""
        self._connection.finish()
        if self._written:
            self._written.add_done_callback(lambda _: self._stream.close())

    def finish(self) -> None:
        """The whole request is there."""
        if self._is_refused:
            self._end_refused()
            return
        if self._stream.closed():
            self._release()
            return
        self._body.seek(0)
        self._environ["wsgi.input"] = self._body
        if self._environ.pop("HTTP_TRANSFER_ENCODING", None):
            self._environ["CONTENT_LENGTH"] = str(self._received)
        self._task = asyncio.get_running_loop().create_task(self._answer())
        self._server.exchanges.add(self._task)
        self._task.add_done_callback(self._server.exchanges.discard)
        self._connection.set_close_callback(self._end)

    def on_connection_close(self) -> None:
        """The client went away before the request was complete."""
        self._release()

    def _end(self) -> None:
        """The connection has ended before the answer was sent. What a thread has begun, it ends:
        the answer may have to be closed."""
        if self._task and not self._has_thread:
            self._task.cancel()

    async def _answer(self) -> None:
        try:
            answer = await self._in_turn(wsgi.call, self._server.app, self._environ)
        except CarmeError as error:
            self._refuse(refuse(self._server.app, self._environ, error))
            self._end_refused()
            return
        except Exception:
            log.exception("%s %s", self._environ["REQUEST_METHOD"], self._environ["PATH_INFO"])
            self._stream.close()
            return
        finally:
            self._release()
        if CALLER in self._environ:
            self._tracked.is_known = True
            self._find_user()
        try:
            if answer.chunks is None:
                self._enter(ConnectionPhase.ANSWER, _ANSWER_SECONDS)
                self._write_head(answer, answer.body)
            else:
                await self._stream_chunks(answer)
            self._connection.finish()
        except StreamClosedError:
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
                await self._connection.write(chunk)
        finally:
            answer.close()

    def _write_head(self, answer: wsgi.WsgiAnswer, body: bytes = b"") -> None:
        answer.headers["Date"] = format_timestamp(time.time())
        line = ResponseStartLine("HTTP/1.1", answer.status, answer.reason)
        self._written = self._connection.write_headers(line, answer.headers, body or None)

    def _enter(self, phase: ConnectionPhase, seconds: float | None = None) -> None:
        self._server.table.enter(self._tracked, phase, seconds)

    async def _in_turn(self, function: Callable[..., T], *arguments: object) -> T:
        """The function's result, from a thread when it is this client's turn. Raises BusyError if
        too many requests of the client wait."""
        context = self._server.context
        gate = context.user_turns if self._find_user() else context.stranger_turns
        self._enter(ConnectionPhase.TURN)
        async with gate.async_turn(self._tracked.client):
            self._enter(ConnectionPhase.WORK)
            return await self._in_thread(function, *arguments)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        self._has_thread = True
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._server.threads, function, *arguments)
        finally:
            self._has_thread = False

    def _release(self) -> None:
        """Give back what the body occupies."""
        admission, self._admission = self._admission, None
        if admission:
            admission.release()
        with suppress(OSError):
            self._body.close()
