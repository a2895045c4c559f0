"""A small HTTP server on a unix socket, with the Unix user of each request."""

import asyncio
import fcntl
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11

from carme.errors import (
    BusyError,
    CarmeError,
    ConfigError,
    InputError,
    UnavailableError,
    error_to_json,
)
from carme.fair_use import FairGate, GateTicket
from carme.system.users import peer_uid

log = logging.getLogger(__name__)

# Any user of this host may connect, so there are limits per user.
_MAX_CONNECTIONS, _MAX_CONNECTIONS_PER_USER = 10_000, 64
_MAX_HEAD_BYTES = 16 * 1024
_MAX_BODY_BYTES = 64 * 1024
_CHUNK_BYTES = 16 * 1024
_REQUEST_SECONDS = 10
_REFUSED_REQUEST_SECONDS = 1
_REPLY_SECONDS = 30
_STATUS = {
    "input": 400,
    "denied": 403,
    "missing": 404,
    "busy": 429,
    "config": 500,
    "unavailable": 503,
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request and the uid of its sender, from the kernel."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    uid: int

    def json(self) -> Any:
        """The body's value; InputError if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):  # the latter: nested too deeply
            raise InputError("the body is not JSON") from None


@dataclass(frozen=True, slots=True)
class ViewReply:
    """A response with a JSON body, which a 304 leaves out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    def encode(self, connection: h11.Connection) -> bytes:
        """The whole response, after which the connection is closed."""
        headers = [("Connection", "close"), *(self.headers or {}).items()]
        if self.status != HTTPStatus.NOT_MODIFIED:
            headers += [("Content-Type", "application/json")]
            headers += [("Content-Length", str(len(self.body)))]
        response = h11.Response(
            status_code=self.status, headers=headers, reason=HTTPStatus(self.status).phrase
        )
        encoded = connection.send(response) or b""
        if self.body:
            with suppress(h11.LocalProtocolError):  # a response to HEAD has no body
                encoded += connection.send(h11.Data(data=self.body)) or b""
        return encoded


Handler = Callable[[HttpRequest], Awaitable[ViewReply]]


def connection_gate() -> FairGate:
    """Lets each user have 64 connections."""
    return FairGate("connections", _MAX_CONNECTIONS, _MAX_CONNECTIONS_PER_USER, 0)


class UnixServer:
    """Answers requests on the socket `path` with `handler`; errors become JSON. `connections`
    limits and counts the connections of each user."""

    def __init__(self, path: Path, handler: Handler, connections: FairGate | None = None) -> None:
        self._path = path
        self._handler = handler
        self._connections = connections or connection_gate()
        self._open: Counter[int] = Counter()
        """All connections by uid, also those that only get a refusal."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._lock = -1

    async def start(self) -> None:
        """Listen. The socket appears with its final mode, in place of a stale one."""
        self._lock = _lock(self._path)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            temporary.unlink(missing_ok=True)
            listener.bind(str(temporary))
            # Every user may connect: the answer depends on the user.
            temporary.chmod(0o666)
            listener.listen(128)
            temporary.rename(self._path)
        except OSError as error:
            listener.close()
            raise ConfigError(f"{self._path}: cannot listen there: {error.strerror}") from error
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def stop(self) -> None:
        """Stop listening, end all connections and remove the socket."""
        if self._server:
            self._server.close()
            self._path.unlink(missing_ok=True)
        await asyncio.sleep(0)  # connections that were just accepted begin, so that they can end
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lock >= 0:
            os.close(self._lock)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_uid(writer.get_extra_info("socket"))
        if self._open[uid] >= 2 * _MAX_CONNECTIONS_PER_USER:
            self._connections.refused += 1
            writer.transport.abort()  # each costs a file descriptor, also while it is refused
            return
        self._open[uid] += 1
        place: GateTicket | None = None
        refusal: CarmeError | None = None
        try:
            place = self._connections.enter(f"uid {uid}")
        except CarmeError as error:
            refusal = error
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
            reply = await self._answer(reader, connection, uid, refusal)
            writer.write(reply.encode(connection))
            async with asyncio.timeout(_REPLY_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # the client has gone
        finally:
            if place:
                place.leave()
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        connection: h11.Connection,
        uid: int,
        refusal: CarmeError | None,
    ) -> ViewReply:
        try:
            if refusal:
                # Closing before the request is read would reset the connection and lose the answer.
                with suppress(TimeoutError, InputError):
                    async with asyncio.timeout(_REFUSED_REQUEST_SECONDS):
                        await _read_request(reader, connection, uid)
                raise refusal
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await _read_request(reader, connection, uid)
            return await self._handler(request)
        except BusyError as error:
            headers = {"Retry-After": str(error.retry_seconds)}
            return json_reply(error_to_json(error), _STATUS[error.reason], **headers)
        except CarmeError as error:
            return json_reply(error_to_json(error), _STATUS.get(error.reason, 500))
        except (OSError, TimeoutError):
            raise
        except Exception:
            log.exception("a request failed")
            return json_reply(error_to_json(UnavailableError("an internal error")), 500)


def json_reply(value: object, status: int = 200, **headers: str) -> ViewReply:
    """An answer with a JSON body."""
    return ViewReply(status, json.dumps(value).encode(), headers)


async def _read_request(
    reader: asyncio.StreamReader, connection: h11.Connection, uid: int
) -> HttpRequest:
    """The connection's one request; InputError if it is not HTTP or too long."""
    request: h11.Request | None = None
    body = bytearray()
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_CHUNK_BYTES))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                raise ConnectionResetError("closed before the request was complete")
            if len(body) > _MAX_BODY_BYTES:
                raise InputError("the request's body is too long")
    except h11.RemoteProtocolError as error:
        raise InputError(f"this is not an HTTP request: {error}") from None
    if request is None:
        raise InputError("this is not an HTTP request")
    try:
        url = urlsplit(request.target.decode("latin-1"))
        query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise InputError("the request's address cannot be read") from None
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    return HttpRequest(request.method.decode(), url.path, query, headers, bytes(body), uid)


def _lock(path: Path) -> int:
    """A lock file beside the socket: two pollers would double the load on Slurm."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"{path.parent}: cannot write there: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"another carme-view is serving {path}") from None
    return lock
