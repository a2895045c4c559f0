"""Reading `carme-view`: `ViewClient` for commands, `AsyncViewClient` for an event loop."""

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from carme.config import ViewSettings
from carme.errors import UnavailableError
from carme.jobs.models import IdleJobs, Idleness, JobList, JobReport
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import ExpectedStart, History, HistoryJob, Job, SlurmModel
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot
from carme.view.messages import ViewReply, decode_reply, encode_request, error_from

M = TypeVar("M", bound=SlurmModel)
_TIMEOUT_SECONDS = 10.0
_REFRESH_TIMEOUT_SECONDS = 20.0
_HISTORY_TIMEOUT_SECONDS = 60.0
_HINT = "is carme-view running?"


class _Cache:
    """The last snapshot and its ETag: an unchanged cluster is neither sent nor parsed again."""

    def __init__(self) -> None:
        self.held: tuple[str, Snapshot] | None = None

    def take(self, reply: ViewReply, held: tuple[str, Snapshot] | None) -> Snapshot:
        """The snapshot in the answer to a request that said `held` is known."""
        headers = reply.headers or {}
        if reply.status == 304 and held:
            etag, old = held
            taken_at = float(headers.get("carme-taken-at") or old.taken_at)
            found = old.model_copy(update={"taken_at": taken_at})
        else:
            etag, found = headers.get("etag", ""), _model(reply, Snapshot)
        # Of two answers that came at once, the newer stays.
        if not self.held or self.held[1].taken_at <= found.taken_at:
            self.held = (etag, found)
        return found


def _known(held: tuple[str, Snapshot] | None) -> dict[str, str]:
    return {"If-None-Match": held[0]} if held else {}


class ViewClient:
    """The view for code that may wait."""

    def __init__(
        self,
        path: Path,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        history_seconds: float = _HISTORY_TIMEOUT_SECONDS,
    ) -> None:
        self._path = path
        self._history_timeout = history_seconds
        self._timeout = timeout_seconds
        self._cache = _Cache()

    @classmethod
    def of(cls, view: ViewSettings) -> "ViewClient":
        """The client for this configuration."""
        return cls(view.socket)

    def snapshot(self) -> Snapshot:
        """What the view has; `taken_at` says from when, `error` why it is not fresher."""
        held = self._cache.held
        return self._cache.take(self._ask("GET", "/snapshot", headers=_known(held)), held)

    def refresh(self, max_age_seconds: float = 0) -> Snapshot:
        """A snapshot no older than asked for; UnavailableError while Slurm is away."""
        query, held = {"max_age_seconds": max_age_seconds}, self._cache.held
        reply = self._ask("POST", "/refresh", query, None, _known(held), _REFRESH_TIMEOUT_SECONDS)
        return self._cache.take(reply, held)

    def job(self, job_id: int) -> Job:
        """One job; MissingError if it is not in the queue or not to be seen."""
        return _model(self._ask("GET", f"/jobs/{job_id}"), Job)

    def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """When a job like this would start; InputError if Slurm would not take it."""
        return _model(self._ask("GET", "/expected-start", _query(choice)), ExpectedStart)

    def rights(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """The user's accounts and QoS with their limits; other users' for readers only."""
        return _model(self._ask("GET", "/rights", _whose(user, max_age_seconds)), UserRights)

    def extend(self, job_id: int, seconds: int) -> Job:
        """More time for a job of one's own."""
        body = {"job_id": job_id, "seconds": seconds}
        reply = self._ask("POST", "/extend", None, body, None, 2 * _REFRESH_TIMEOUT_SECONDS)
        return _model(reply, Job)

    def history(self, since: int, until: int | None = None) -> tuple[HistoryJob, ...]:
        """Jobs of the accounting database in that time: all for readers, else one's own."""
        query = {"since": since} if until is None else {"since": since, "until": until}
        reply = self._ask("GET", "/history", query, timeout=self._history_timeout)
        return _model(reply, History).jobs

    def report(self, job_id: int) -> JobReport:
        """What a job asked for, used and wasted; MissingError if it is not to be seen."""
        reply = self._ask("GET", f"/reports/{job_id}", timeout=self._history_timeout)
        return _model(reply, JobReport)

    def reports(self, **wish: object) -> JobList:
        """Jobs as `carme.jobs.reporter.Wish` asks for them: one's own, or all for admins."""
        given = {name: value for name, value in wish.items() if value not in (None, "")}
        reply = self._ask("GET", "/reports", given, timeout=self._history_timeout)
        return _model(reply, JobList)

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
    ) -> ViewReply:
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
    def of(cls, view: ViewSettings) -> "AsyncViewClient":
        """The client for this configuration."""
        return cls(view.socket)

    async def snapshot(self) -> Snapshot:
        """As ViewClient.snapshot."""
        held = self._cache.held
        reply = await self._ask("GET", "/snapshot", headers=_known(held))
        return await asyncio.to_thread(self._cache.take, reply, held)

    async def refresh(self, max_age_seconds: float = 0) -> Snapshot:
        """As ViewClient.refresh."""
        query, held = {"max_age_seconds": max_age_seconds}, self._cache.held
        limit = _REFRESH_TIMEOUT_SECONDS
        reply = await self._ask("POST", "/refresh", query, None, _known(held), limit)
        return await asyncio.to_thread(self._cache.take, reply, held)

    async def job(self, job_id: int) -> Job:
        """As ViewClient.job."""
        return _model(await self._ask("GET", f"/jobs/{job_id}"), Job)

    async def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """As ViewClient.expected_start."""
        reply = await self._ask("GET", "/expected-start", _query(choice))
        return _model(reply, ExpectedStart)

    async def rights(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """As ViewClient.rights."""
        reply = await self._ask("GET", "/rights", _whose(user, max_age_seconds))
        return _model(reply, UserRights)

    async def extend(self, job_id: int, seconds: int) -> Job:
        """As ViewClient.extend."""
        body = {"job_id": job_id, "seconds": seconds}
        limit = 2 * _REFRESH_TIMEOUT_SECONDS
        return _model(await self._ask("POST", "/extend", None, body, None, limit), Job)

    async def history(self, since: int, until: int | None = None) -> tuple[HistoryJob, ...]:
        """As ViewClient.history."""
        query = {"since": since} if until is None else {"since": since, "until": until}
        reply = await self._ask("GET", "/history", query, timeout=_HISTORY_TIMEOUT_SECONDS)
        return (await asyncio.to_thread(_model, reply, History)).jobs

    async def report(self, job_id: int) -> JobReport:
        """As ViewClient.report."""
        reply = await self._ask("GET", f"/reports/{job_id}", timeout=_HISTORY_TIMEOUT_SECONDS)
        return _model(reply, JobReport)

    async def idle(self, job_ids: Iterable[int], seconds: float) -> Mapping[int, Idleness]:
        """What running jobs did in the last `seconds`, of those measured all the time."""
        query = {"jobs": ",".join(map(str, job_ids)), "seconds": seconds}
        return _model(await self._ask("GET", "/idle", query), IdleJobs).jobs

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
    ) -> ViewReply:
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


def _whose(user: str, max_age_seconds: float | None) -> dict[str, object]:
    asked: dict[str, object] = {"user": user}
    return asked if max_age_seconds is None else {**asked, "max_age_seconds": max_age_seconds}


def _query(choice: ResourceRequest) -> dict[str, object]:
    return choice.model_dump(exclude_defaults=True)


def _unavailable(path: Path, error: OSError) -> UnavailableError:
    if isinstance(error, TimeoutError):
        return UnavailableError(f"{path} did not answer in time", _HINT)
    said = os.strerror(error.errno) if error.errno else str(error)
    return UnavailableError(f"{path}: {said}", _HINT)


def _checked(reply: ViewReply) -> ViewReply:
    if reply.status >= 400:
        raise error_from(reply.json()) or UnavailableError(f"the view answered {reply.status}")
    return reply


def _model(reply: ViewReply, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(reply.body)
    except ValidationError as error:
        first = error.errors()[0]
        raise UnavailableError(f"the view's answer cannot be read: {first['msg']}") from error
