"""Reading `carme-view`: `ViewClient` for commands, `AsyncViewClient` for an event loop."""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from carme.config import View
from carme.errors import UnavailableError
from carme.slurm.models import Choice, ExpectedStart, Job, Model, Snapshot
from carme.slurm.wire import Reply, decode_reply, encode_request, error_from

M = TypeVar("M", bound=Model)
_TIMEOUT_SECONDS = 10.0
_REFRESH_TIMEOUT_SECONDS = 20.0
_HINT = "is carme-view running?"


class _Cache:
    """The last snapshot and its ETag: an unchanged cluster is neither sent nor parsed again."""

    def __init__(self) -> None:
        self._etag = ""
        self._snapshot: Snapshot | None = None

    def headers(self) -> dict[str, str]:
        return {"If-None-Match": self._etag} if self._snapshot else {}

    def take(self, reply: Reply) -> Snapshot:
        headers = reply.headers or {}
        if reply.status == 304 and self._snapshot:
            at = float(headers.get("carme-taken-at") or self._snapshot.taken_at)
            self._snapshot = self._snapshot.model_copy(update={"taken_at": at})
        else:
            self._snapshot = _model(reply, Snapshot)
            self._etag = headers.get("etag", "")
        return self._snapshot


class ViewClient:
    """The view for code that may wait."""

    def __init__(self, path: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._path = path
        self._timeout = timeout_seconds
        self._cache = _Cache()

    @classmethod
    def of(cls, view: View) -> "ViewClient":
        """The client for this configuration."""
        return cls(view.socket)

    def snapshot(self) -> Snapshot:
        """What the view has; `taken_at` says from when, `error` why it is not fresher."""
        return self._cache.take(self._ask("GET", "/snapshot", headers=self._cache.headers()))

    def refresh(self, max_age_seconds: float = 0) -> Snapshot:
        """A snapshot no older than asked for; UnavailableError while Slurm is away."""
        query = {"max_age_seconds": max_age_seconds}
        headers = self._cache.headers()
        return self._cache.take(
            self._ask("POST", "/refresh", query, None, headers, _REFRESH_TIMEOUT_SECONDS)
        )

    def job(self, job_id: int) -> Job:
        """One job; MissingError if it is not in the queue or not to be seen."""
        return _model(self._ask("GET", f"/jobs/{job_id}"), Job)

    def expected_start(self, choice: Choice) -> ExpectedStart:
        """When a job like this would start; InputError if Slurm would not take it."""
        return _model(self._ask("GET", "/expected-start", _query(choice)), ExpectedStart)

    def extend(self, job_id: int, seconds: int) -> Job:
        """More time for a job of one's own."""
        body = {"job_id": job_id, "seconds": seconds}
        reply = self._ask("POST", "/extend", None, body, None, 2 * _REFRESH_TIMEOUT_SECONDS)
        return _model(reply, Job)

    def counters(self) -> dict[str, Any]:
        """What the view did since it started."""
        value: dict[str, Any] = self._ask("GET", "/counters").json()
        return value

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        deadline = time.monotonic() + (timeout or self._timeout)
        received = bytearray()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout or self._timeout)
                connection.connect(str(self._path))
                connection.sendall(encode_request(method, path, query, body, headers))
                while chunk := connection.recv(1 << 16):
                    received += chunk
                    connection.settimeout(max(0.01, deadline - time.monotonic()))
        except OSError as error:
            raise _unavailable(self._path, error) from error
        return _checked(decode_reply(bytes(received)))


class AsyncViewClient:
    """The view for an event loop: the same methods, awaited; never blocks the loop."""

    def __init__(self, path: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._path = path
        self._timeout = timeout_seconds
        self._cache = _Cache()

    @classmethod
    def of(cls, view: View) -> "AsyncViewClient":
        """The client for this configuration."""
        return cls(view.socket)

    async def snapshot(self) -> Snapshot:
        """As ViewClient.snapshot."""
        reply = await self._ask("GET", "/snapshot", headers=self._cache.headers())
        return await asyncio.to_thread(self._cache.take, reply)

    async def refresh(self, max_age_seconds: float = 0) -> Snapshot:
        """As ViewClient.refresh."""
        query = {"max_age_seconds": max_age_seconds}
        headers = self._cache.headers()
        reply = await self._ask("POST", "/refresh", query, None, headers, _REFRESH_TIMEOUT_SECONDS)
        return await asyncio.to_thread(self._cache.take, reply)

    async def job(self, job_id: int) -> Job:
        """As ViewClient.job."""
        return _model(await self._ask("GET", f"/jobs/{job_id}"), Job)

    async def expected_start(self, choice: Choice) -> ExpectedStart:
        """As ViewClient.expected_start."""
        reply = await self._ask("GET", "/expected-start", _query(choice))
        return _model(reply, ExpectedStart)

    async def extend(self, job_id: int, seconds: int) -> Job:
        """As ViewClient.extend."""
        body = {"job_id": job_id, "seconds": seconds}
        limit = 2 * _REFRESH_TIMEOUT_SECONDS
        return _model(await self._ask("POST", "/extend", None, body, None, limit), Job)

    async def counters(self) -> dict[str, Any]:
        """As ViewClient.counters."""
        value: dict[str, Any] = (await self._ask("GET", "/counters")).json()
        return value

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        try:
            async with asyncio.timeout(timeout or self._timeout):
                reader, writer = await asyncio.open_unix_connection(self._path)
                try:
                    writer.write(encode_request(method, path, query, body, headers))
                    await writer.drain()
                    received = await reader.read()
                finally:
                    writer.close()
        except OSError as error:  # TimeoutError is one, too
            raise _unavailable(self._path, error) from error
        return _checked(decode_reply(received))


def _query(choice: Choice) -> dict[str, object]:
    return choice.model_dump(exclude_defaults=True)


def _unavailable(path: Path, error: OSError) -> UnavailableError:
    if isinstance(error, TimeoutError):
        return UnavailableError(f"{path} did not answer in time", _HINT)
    said = os.strerror(error.errno) if error.errno else str(error)
    return UnavailableError(f"{path}: {said}", _HINT)


def _checked(reply: Reply) -> Reply:
    if reply.status >= 400:
        raise error_from(reply.json()) or UnavailableError(f"the view answered {reply.status}")
    return reply


def _model(reply: Reply, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(reply.body)
    except ValidationError as error:
        first = error.errors()[0]
        raise UnavailableError(f"the view's answer cannot be read: {first['msg']}") from error
