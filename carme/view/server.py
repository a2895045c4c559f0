"""A small HTTP server on a unix socket, with the Unix user of each request."""

import asyncio
import fcntl
import http.client
import io
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

from carme.errors import CarmeError, ConfigError, InputError, UnavailableError, error_to_json
from carme.system.users import peer_uid

log = logging.getLogger(__name__)

# Any user of this host may connect, so there are limits per user.
_MAX_CONNECTIONS_PER_USER = 64
_MAX_HEAD_BYTES = 16 * 1024
_MAX_BODY_BYTES = 64 * 1024
_REQUEST_SECONDS = 10
_REPLY_SECONDS = 30
_STATUS = {"input": 400, "denied": 403, "missing": 404, "config": 500, "unavailable": 503}


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
        except ValueError:
            raise InputError("the body is not JSON") from None


@dataclass(frozen=True, slots=True)
class ViewReply:
    """A response with a JSON body, which a 304 leaves out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    def encode(self) -> bytes:
        """The whole HTTP/1.1 response."""
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {phrase}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (self.headers or {}).items()]
        if self.status != HTTPStatus.NOT_MODIFIED:
            lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


Handler = Callable[[HttpRequest], Awaitable[ViewReply]]


class UnixServer:
    """Answers requests on the socket `path` with `handler`; errors become JSON."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._connections: Counter[int] = Counter()
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
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=_MAX_HEAD_BYTES
        )

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
        self._connections[uid] += 1
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            reply = await self._answer(reader, uid)
            writer.write(reply.encode())
            async with asyncio.timeout(_REPLY_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, uid: int) -> ViewReply:
        try:
            if self._connections[uid] > _MAX_CONNECTIONS_PER_USER:
                # Closing before the request is read would reset the connection and lose the answer.
                with suppress(TimeoutError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(1):
                        await reader.readuntil(b"\r\n\r\n")
                raise UnavailableError("too many connections of this user at once")
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await _read_request(reader, uid)
            return await self._handler(request)
        except CarmeError as error:
            return json_reply(error_to_json(error), _STATUS.get(error.reason, 500))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception:
            log.exception("a request failed")
            return json_reply(error_to_json(UnavailableError("an internal error")), 500)


def json_reply(value: object, status: int = 200, **headers: str) -> ViewReply:
    """An answer with a JSON body."""
    return ViewReply(status, json.dumps(value).encode(), headers)


async def _read_request(reader: asyncio.StreamReader, uid: int) -> HttpRequest:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise InputError("the request's head is too long") from None
    request_line, _, fields = head.partition(b"\r\n")
    parts = request_line.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise InputError("this is not an HTTP request")
    try:
        parsed = http.client.parse_headers(io.BytesIO(fields))
    except http.client.HTTPException:
        raise InputError("the request's headers cannot be read") from None
    headers = {name.lower(): value.strip() for name, value in parsed.items()}
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
        raise InputError("the request's body is too long")
    body = await reader.readexactly(int(length))
    try:
        url = urlsplit(parts[1])
        query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise InputError("the request's address cannot be read") from None
    return HttpRequest(parts[0], url.path, query, headers, body, uid)


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
