"""Reading `carme-view`: `ViewClient` for commands, `AsyncViewClient` for an event loop.

A snapshot's age is that of its jobs or nodes, whichever are older. A process that shows the cluster
again and again has one `SnapshotSubscription`, which has the view's newest snapshot. A caller that
needs a newer one passes its maximum age to `refresh`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from carme.config import ViewSettings
from carme.errors import CarmeError, UnavailableError, error_from_json
from carme.jobs.models import IdleJobs, Idleness, JobList, JobReport
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import ExpectedStart, History, HistoryJob, Job, SlurmModel
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot
from carme.system import unix_http
from carme.system.unix_http import HttpResponse
from carme.validation import explain_first

log = logging.getLogger(__name__)
M = TypeVar("M", bound=SlurmModel)
T = TypeVar("T")
_TIMEOUT_SECONDS = 10.0
_REFRESH_TIMEOUT_SECONDS = 20.0
_HISTORY_TIMEOUT_SECONDS = 60.0
_HINT = "is carme-view running?"

USER_HEADER = "Carme-User"
"""The user for whom a reader asks: the view's limits per user then apply to that user."""
TIME_HEADERS = {"taken_at": "Carme-Taken-At", "nodes_taken_at": "Carme-Nodes-Taken-At"}
"""The fields of a snapshot that the view sends as headers, because a 304 has no body."""
LOST_SECONDS = 10.0
"""A subscription serves its last snapshot for this long while the view is away: it may restart."""
_WAIT_SECONDS = 25.0
_RETRY_SECONDS = 1.0
_PAUSE_SECONDS = 0.2
"""Between two requests of a subscription, if the view answers without waiting."""
_THREADS = 32
"""Concurrent requests of an event loop: half of the connections that the view gives to one user."""


class ViewClient:
    """The view for blocking code. Threads can share a client."""

    def __init__(
        self,
        path: Path,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        history_seconds: float = _HISTORY_TIMEOUT_SECONDS,
    ) -> None:
        self._path = path
        self._history_timeout = history_seconds
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._newest: tuple[str, Snapshot] | None = None  # with its ETag

    @classmethod
    def of(cls, view: ViewSettings) -> "ViewClient":
        """The client for this configuration."""
        return cls(view.socket)

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot that this client has received; sends no request."""
        return self._newest[1] if self._newest else None

    def snapshot(self, wait_seconds: float = 0) -> Snapshot:
        """The view's snapshot; `taken_at` says from when, `error` why it is not newer.

        With `wait_seconds`, the view answers as soon as it has something newer than `newest`, at
        the latest after that time.
        """
        query: dict[str, object] = {}
        if wait_seconds:
            newer_than = self.newest.taken_at if self.newest else 0
            query = {"wait": wait_seconds, "newer_than": newer_than}
        return self._read_snapshot("GET", "/snapshot", query, wait_seconds + self._timeout)

    def refresh(self, max_age_seconds: float = 0, jobs_only: bool = False) -> Snapshot:
        """A snapshot no older than asked for; UnavailableError while Slurm is away.

        With `jobs_only` its nodes may be older, which spares Slurm two calls of three.
        """
        query: dict[str, object] = {"max_age_seconds": max_age_seconds}
        if jobs_only:
            query["jobs_only"] = 1
        return self._read_snapshot("POST", "/refresh", query, _REFRESH_TIMEOUT_SECONDS)

    def _read_snapshot(
        self, method: str, path: str, query: Mapping[str, object], timeout: float
    ) -> Snapshot:
        """An unchanged cluster is neither sent nor parsed again: only its time is new."""
        sent = self._newest
        headers = {"If-None-Match": sent[0]} if sent and sent[0] else {}
        response = self._request(method, path, query, headers=headers, timeout=timeout)
        etag = response.headers.get("ETag", "")
        with self._lock:
            newest = self._newest
            unchanged = next(
                (cached for cached in (newest, sent) if cached and etag and cached[0] == etag), None
            )
            if unchanged:
                times = {
                    field: float(response.headers[header])
                    for field, header in TIME_HEADERS.items()
                    if header in response.headers
                }
                snapshot = unchanged[1].model_copy(update=times)
            else:
                snapshot = _model(response, Snapshot)
            # One response may overtake another; and the clock may have been set back.
            if not newest or not snapshot.taken_at < newest[1].taken_at <= time.time():
                self._newest = (etag, snapshot)
        return snapshot

    def job(self, job_id: int) -> Job:
        """One job; MissingError if it is not in the queue or the caller may not see it."""
        return self._get(Job, f"/jobs/{job_id}")

    def expected_start(self, resources: ResourceRequest, for_user: str = "") -> ExpectedStart:
        """When a job like this would start; InputError if Slurm would not take it."""
        query = resources.model_dump(exclude_defaults=True)
        return self._get(ExpectedStart, "/expected-start", query, for_user=for_user)

    def rights(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """The user's accounts and QoS with their limits; other users' for readers only."""
        query: dict[str, object] = {"user": user}
        if max_age_seconds is not None:
            query["max_age_seconds"] = max_age_seconds
        return self._get(UserRights, "/rights", query)

    def extend(self, job_id: int, seconds: int) -> Job:
        """More time for a job of one's own."""
        body = {"job_id": job_id, "seconds": seconds}
        timeout = 2 * _REFRESH_TIMEOUT_SECONDS
        return _model(self._request("POST", "/extend", body=body, timeout=timeout), Job)

    def history(self, since: int, until: int | None = None) -> tuple[HistoryJob, ...]:
        """Jobs of the accounting database in that time: all for readers, else one's own."""
        query = {"since": since} if until is None else {"since": since, "until": until}
        return self._get(History, "/history", query, self._history_timeout).jobs

    def report(self, job_id: int, for_user: str = "") -> JobReport:
        """What a job requested, used and wasted; MissingError if the caller may not see it."""
        path = f"/reports/{job_id}"
        return self._get(JobReport, path, None, self._history_timeout, for_user)

    def reports(self, for_user: str = "", **filters: object) -> JobList:
        """Jobs that `carme.jobs.job_reporter.JobFilter` selects: one's own, or all for admins."""
        query = {name: value for name, value in filters.items() if value not in (None, "")}
        return self._get(JobList, "/reports", query, self._history_timeout, for_user)

    def idle(self, job_ids: Iterable[int], seconds: float) -> Mapping[int, Idleness]:
        """How idle running jobs were in the last `seconds`, of those measured all the time."""
        query = {"jobs": ",".join(map(str, job_ids)), "seconds": seconds}
        return self._get(IdleJobs, "/idle", query).jobs

    def counters(self) -> dict[str, Any]:
        """The view's counters since it started."""
        counters: dict[str, Any] = self._request("GET", "/counters").json()
        return counters

    def _get(
        self,
        kind: type[M],
        path: str,
        query: Mapping[str, object] | None = None,
        timeout: float | None = None,
        for_user: str = "",
    ) -> M:
        headers = {USER_HEADER: for_user} if for_user else None
        return _model(self._request("GET", path, query, headers=headers, timeout=timeout), kind)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> HttpResponse:
        response = unix_http.request(
            self._path,
            method,
            path,
            query=query,
            body=body,
            headers=headers,
            timeout_seconds=timeout or self._timeout,
            hint=_HINT,
        )
        if response.status >= 400:
            error = error_from_json(response.json())
            raise error or UnavailableError(f"the view answered {response.status}")
        return response


class SnapshotSubscription:
    """The view's newest snapshot, for a process that shows it again and again.

    A thread, started at the first call, waits at the view for the next snapshot and gets it as soon
    as Slurm has been read.
    """

    def __init__(self, client: ViewClient) -> None:
        self.client = client
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._failure: tuple[float, CarmeError] | None = None  # since when, and the last error

    @property
    def is_answered(self) -> bool:
        """`snapshot` does not have to wait."""
        return self._answered.is_set()

    def snapshot(self) -> Snapshot:
        """The newest snapshot. Only the first call waits, for the view's first answer.

        Raises the view's error if there is no snapshot yet, or if the view has been away for
        LOST_SECONDS.
        """
        # A process that was forked has lost the thread.
        with self._start_lock:
            if not (self._thread and self._thread.is_alive()):
                self._thread = threading.Thread(target=self._follow, name="view", daemon=True)
                self._thread.start()
        self._answered.wait()
        newest, failure = self.client.newest, self._failure
        is_lost = failure is not None and time.monotonic() - failure[0] > LOST_SECONDS
        if newest is None or is_lost:
            error = failure[1] if failure else UnavailableError("there is no snapshot yet", _HINT)
            raise type(error)(error.message, error.hint)
        return newest

    def close(self) -> None:
        """End the thread once the request ends that it waits for."""
        self._closed.set()

    def _follow(self) -> None:
        while not self._closed.is_set():
            wait = _WAIT_SECONDS if self.is_answered and not self._failure else 0
            try:
                self.client.snapshot(wait)
            except CarmeError as error:
                self._failed(error)
            except Exception as error:
                # A bug must not leave this process with an old snapshot for ever.
                log.exception("reading the view failed")
                self._failed(UnavailableError(f"reading the view failed: {type(error).__name__}"))
            else:
                self._failure = None
            self._answered.set()
            self._closed.wait(_RETRY_SECONDS if self._failure else _PAUSE_SECONDS)

    def _failed(self, error: CarmeError) -> None:
        if self._failure is None:
            log.warning("the view cannot be read: %s", error)
        since = self._failure[0] if self._failure else time.monotonic()
        self._failure = (since, error)


class AsyncViewClient:
    """The view for an event loop: the methods of ViewClient, awaited; they run in threads."""

    def __init__(self, path: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._client = ViewClient(path, timeout_seconds)
        self._subscription = SnapshotSubscription(self._client)
        self._threads = ThreadPoolExecutor(_THREADS, "view")

    @property
    def newest(self) -> Snapshot | None:
        """As ViewClient.newest."""
        return self._client.newest

    async def subscribed(self) -> Snapshot:
        """As SnapshotSubscription.snapshot."""
        if self._subscription.is_answered:
            return self._subscription.snapshot()
        return await self._run(self._subscription.snapshot)

    async def refresh(self, max_age_seconds: float = 0, jobs_only: bool = False) -> Snapshot:
        """As ViewClient.refresh."""
        return await self._run(self._client.refresh, max_age_seconds, jobs_only)

    async def expected_start(self, resources: ResourceRequest, for_user: str = "") -> ExpectedStart:
        """As ViewClient.expected_start."""
        return await self._run(self._client.expected_start, resources, for_user)

    async def rights(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """As ViewClient.rights."""
        return await self._run(self._client.rights, user, max_age_seconds)

    async def idle(self, job_ids: Iterable[int], seconds: float) -> Mapping[int, Idleness]:
        """As ViewClient.idle."""
        return await self._run(self._client.idle, tuple(job_ids), seconds)

    async def _run(self, method: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, method, *arguments)


def _model(response: HttpResponse, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(response.body)
    except ValidationError as error:
        problem = explain_first(error, root="answer")
        raise UnavailableError(f"the view's answer cannot be read: {problem}") from error
