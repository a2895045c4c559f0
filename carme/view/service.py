"""The requests that `carme-view` answers on its unix socket.

Readers (the hub, the service), root and the view's own user see every job; members of the admins'
group see reports of every job. Any other user sees the cluster and their own jobs.
"""

import asyncio
import hashlib
import logging
import math
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from carme.config import Config
from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError
from carme.fair_use import FairGate, RateLimiter, refusals
from carme.jobs.job_reporter import JobReporter, parse_filter
from carme.jobs.models import IdleJobs
from carme.requests.resource_request import GIB, ResourceRequest
from carme.requests.slurm_user import within_rights
from carme.slurm.client import SlurmClient
from carme.slurm.command_client import CommandClient
from carme.slurm.models import ExpectedStart, History, HistoryJob, Job, SlurmModel
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of
from carme.validation import explain_first
from carme.view.caches import ExpectedStarts, HistoryCache, LookupCache, RightsCache
from carme.view.client import TIME_HEADERS, USER_HEADER
from carme.view.poller import Poller
from carme.view.server import HttpRequest, ViewReply, connection_gate, json_reply
from carme.view.time_extension import extended_limit

log = logging.getLogger(__name__)

_OTHERS_MAX_AGE_SECONDS = 5.0
"""Least `max_age_seconds` for users who are not readers: they must not cause a read per second."""
_REFRESH_SECONDS = 15.0
_MAX_WAIT_SECONDS = 60.0
"""A request for the next snapshot is answered after this time even if there is none."""
_FOLDERS = ("/jobs/", "/reports/")
"""Their paths end in a job id."""
_NAME_SECONDS = 300.0
"""A uid may be given to another user, with other rights."""
_GROUPS_SECONDS = 60.0
_LOOKUP_THREADS = 4
"""For the directory service, so that the poller does not wait for it."""
_EXTENSIONS_WAITING = 4
"""Extensions of one user that wait while another of theirs is made."""
_USER_HEADER = USER_HEADER.lower()
_NO_NAME = "you have no user name here"


class ExtendBody(SlurmModel):
    """More time for a job of one's own."""

    job_id: int
    seconds: int


@dataclass(frozen=True, slots=True)
class ViewCaller:
    """The Unix user who makes a request; `user` is empty for a uid without a name."""

    uid: int
    user: str
    is_reader: bool
    """Sees every job."""
    on_behalf_of: str = ""
    """The user whom a reader names, for whom it asks."""

    @property
    def asker(self) -> str:
        """Whose question this is: limits per user apply to them."""
        return self.on_behalf_of or self.user or f"uid {self.uid}"

    def name(self) -> str:
        """The user's name; DeniedError if there is none."""
        if not self.user:
            raise DeniedError(_NO_NAME)
        return self.user

    def require_reader(self, request: str) -> None:
        """Raise DeniedError for a user who is not a reader."""
        if not self.is_reader:
            raise DeniedError(f"only readers of the view may ask for {request}")


class ViewService:
    """The answers to every request, from one poller."""

    def __init__(self, config: Config, client: SlurmClient, writer: CommandClient) -> None:
        self.poller = Poller(client, config.view.poll_seconds)
        self._config = config
        self._writer = writer
        self._expected_starts = ExpectedStarts(
            client, config.view.expected_starts_per_minute, config.view.expected_starts_per_user
        )
        self._history_cache = HistoryCache(client)
        self.rights = RightsCache(client, config.view.rights_seconds)
        self._reporter = JobReporter(config.prometheus)
        threads = ThreadPoolExecutor(_LOOKUP_THREADS, "users")
        self._names = LookupCache(_name_of, _NAME_SECONDS, threads)
        self._groups = LookupCache(groups_of, _GROUPS_SECONDS, threads)
        self._bodies: dict[int | None, tuple[bytes, str]] = {}
        self._bodies_of: Snapshot | None = None
        self.connections = connection_gate()
        self._extensions = FairGate("extensions", 1, 1, _EXTENSIONS_WAITING)
        self._rates = RateLimiter(config.view.requests_per_minute)
        self._requests = 0
        self._routes: dict[
            str, Callable[[HttpRequest, ViewCaller], Awaitable[ViewReply | SlurmModel]]
        ]
        self._routes = {
            "/snapshot": self._snapshot,
            "/jobs/": self._job,
            "/healthz": self._health,
            "/counters": self._counters,
            "/expected-start": self._expected_start,
            "/rights": self._rights,
            "/history": self._history,
            "/idle": self._idle,
            "/reports": self._reports,
            "/reports/": self._reports,
            "/refresh": self._refresh,
            "/extend": self._extend,
        }

    async def answer(self, request: HttpRequest) -> ViewReply:
        """Route one request."""
        self._requests += 1
        caller = await self._caller(request)
        folder = next((name for name in _FOLDERS if request.path.startswith(name)), "")
        route = self._routes.get(folder or request.path)
        if route is None:
            raise MissingError(f"nothing is served at {request.path}")
        if request.path in ("/refresh", "/extend") and request.method != "POST":
            raise InputError(f"{request.path} takes POST")
        reply = await route(request, caller)
        if isinstance(reply, ViewReply):
            return reply
        return ViewReply(200, reply.model_dump_json().encode())

    async def _caller(self, request: HttpRequest) -> ViewCaller:
        """Who asks. Raises BusyError above the rate of requests, before a name is looked up."""
        uid = request.uid
        if not self._is_reader(uid, self._names.known(uid)):
            self._rates.check(f"uid {uid}")
        user = await self._names.of(uid)
        if self._is_reader(uid, user):
            return ViewCaller(uid, user, True, request.headers.get(_USER_HEADER, ""))
        return ViewCaller(uid, user, False)

    def _is_reader(self, uid: int, user: str | None) -> bool:
        return uid in (0, os.geteuid()) or user in self._config.view.readers

    def _visible(self, caller: ViewCaller, sees_all: bool = False) -> Snapshot:
        """The current snapshot as the caller may see it."""
        current = self.poller.snapshot
        if current is None:
            raise self.poller.error or UnavailableError("Slurm has not been read yet")
        sees_all = sees_all or caller.is_reader
        return current if sees_all else current.visible_to(caller.user, caller.uid)

    async def _snapshot(self, request: HttpRequest, caller: ViewCaller) -> ViewReply:
        """The snapshot as this user may see it, or 304 if nothing but the time is new.

        With `wait`, a caller who has the newest snapshot is answered when Slurm has been read
        again or has gone away, at the latest after that many seconds.
        """
        wait = min(_number(request, "wait", 0), _MAX_WAIT_SECONDS)
        if wait > 0:
            newer_than = _number(request, "newer_than", 0)
            etag = request.headers.get("if-none-match")

            def is_new() -> bool:
                current = self.poller.snapshot
                if current is None:
                    return self.poller.error is not None
                # Not `>`: the clock may have been set back.
                return current.taken_at != newer_than or (
                    etag is not None and etag != self._body(caller)[1]
                )

            await self.poller.wait_until(is_new, wait)
        return self._snapshot_reply(request, caller)

    def _snapshot_reply(self, request: HttpRequest, caller: ViewCaller) -> ViewReply:
        body, etag = self._body(caller)
        headers = {"ETag": etag}
        for field, header in TIME_HEADERS.items():
            if taken_at := getattr(self._bodies_of, field, None):
                headers[header] = repr(taken_at)
        if request.headers.get("if-none-match") == etag:
            return ViewReply(304, b"", headers)
        return ViewReply(200, body, headers)

    def _body(self, caller: ViewCaller) -> tuple[bytes, str]:
        """The current snapshot as JSON for this user, and its ETag.

        Each is written once per reading and user: a thousand nodes and their jobs take a while.
        """
        if self._bodies_of is not self.poller.snapshot:
            self._bodies_of, self._bodies = self.poller.snapshot, {}
        viewer = None if caller.is_reader else caller.uid
        if viewer not in self._bodies:
            visible = self._visible(caller)
            body = visible.model_dump_json().encode()
            # The ETag leaves out the times, which come first: an unchanged cluster is not sent
            # again.
            content = body.partition(b',"slurm_version":')[2]
            self._bodies[viewer] = (body, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        return self._bodies[viewer]

    async def _job(self, request: HttpRequest, caller: ViewCaller) -> Job:
        job_id = request.path.removeprefix("/jobs/")
        if not job_id.isdecimal():
            raise MissingError(f"nothing is served at {request.path}")
        return self._visible_job(int(job_id), caller)

    def _visible_job(self, job_id: int, caller: ViewCaller) -> Job:
        job = self._visible(caller).job(job_id)
        if not job:
            # The same message for another user's job: its existence is private.
            raise MissingError(f"no job {job_id} in the queue")
        return job

    async def _refresh(self, request: HttpRequest, caller: ViewCaller) -> ViewReply:
        """The snapshot once it, or with `jobs_only` its jobs, are no older than asked for."""
        max_age = _number(request, "max_age_seconds", 0)
        if not caller.is_reader:
            max_age = max(max_age, _OTHERS_MAX_AGE_SECONDS)
        jobs_only = bool(_number(request, "jobs_only", 0))
        await self.poller.fresh(max_age, _REFRESH_SECONDS, jobs_only=jobs_only)
        return self._snapshot_reply(request, caller)

    async def _expected_start(self, request: HttpRequest, caller: ViewCaller) -> ExpectedStart:
        caller.require_reader("an expected start")
        resources = resource_request(request.query)
        # `sbatch --test-only` runs as the view's user, who may have fewer rights than the caller.
        try:
            rights = await self.rights.of(await self._names.of(os.geteuid()))
        except CarmeError as error:
            log.debug("expected start without account and QoS: %s", error)
            rights = UserRights(user="")
        resources = within_rights(resources, rights)
        return await self._expected_starts.expected_start(resources, caller.asker)

    async def _rights(self, request: HttpRequest, caller: ViewCaller) -> UserRights:
        """Accounts and QoS of the named user; only readers may name another user."""
        name = request.query.get("user", caller.user)
        if name != caller.user:
            caller.require_reader("other users' rights")
        if not name:
            raise DeniedError(_NO_NAME)
        keep = self._config.view.rights_seconds
        return await self.rights.of(name, min(keep, _number(request, "max_age_seconds", keep)))

    async def _history(self, request: HttpRequest, caller: ViewCaller) -> History:
        """Jobs of all users for readers; the caller's own for others."""
        try:
            since = int(request.query.get("since", ""))
            until = int(request.query["until"]) if "until" in request.query else None
        except ValueError:
            raise InputError("since and until are Unix seconds") from None
        user = "" if caller.is_reader else caller.name()
        return await self._history_cache.history(since, until, user, caller.asker)

    async def _idle(self, request: HttpRequest, caller: ViewCaller) -> IdleJobs:
        caller.require_reader("idle jobs")
        try:
            jobs = [int(word) for word in request.query.get("jobs", "").split(",") if word]
            seconds = float(request.query.get("seconds", ""))
        except ValueError:
            raise InputError("jobs must be job ids separated by commas, seconds a number") from None
        if not 0 < seconds <= 86400 * 30:
            raise InputError("seconds must be above 0 and within 30 days")
        return await self._reporter.idle(jobs, seconds, caller.asker)

    async def _reports(self, request: HttpRequest, caller: ViewCaller) -> SlurmModel:
        """Reports from Slurm's records and Prometheus' metrics, of jobs that the caller may see."""
        user = caller.name()
        sees_all = caller.is_reader or (
            self._config.hub.admins_group in await self._groups.of(user)
        )
        visible = self._visible(caller, sees_all)

        async def history(since: int, until: int | None) -> tuple[HistoryJob, ...]:
            of_user = "" if sees_all else user
            return (await self._history_cache.history(since, until, of_user, caller.asker)).jobs

        if request.path == "/reports":
            job_filter = parse_filter(request.query)
            return await self._reporter.listing(job_filter, visible, history, caller.asker)
        job_id = request.path.removeprefix("/reports/")
        if not job_id.isdecimal():
            raise InputError(f"{job_id[:40]!r} is not the number of a job")
        return await self._reporter.report(int(job_id), visible, history, caller.asker)

    async def _extend(self, request: HttpRequest, caller: ViewCaller) -> Job:
        try:
            extension = ExtendBody.model_validate(request.json())
        except ValidationError:
            raise InputError("job_id and seconds must be whole numbers") from None
        async with self._extensions.async_turn(caller.asker):
            # One at a time, each on a new reading: `seconds` is added to the limit in it.
            current = await self._with_fresh_jobs(_OTHERS_MAX_AGE_SECONDS)
            if not current.job(extension.job_id):  # perhaps it has only just been submitted
                current = await self._with_fresh_jobs(0)
            job = self._visible_job(extension.job_id, caller)
            user, rules = caller.user, self._config.view
            rights = await self.rights.of(user)
            limit = extended_limit(
                job, extension.seconds, caller.uid, user, current, rights, rules, time.time()
            )
            await asyncio.to_thread(self._writer.extend, job, limit)
            log.info("job %d of %s: time limit is now %d s", extension.job_id, user, limit)
            current = await self._with_fresh_jobs(0)
        return current.job(extension.job_id) or job

    async def _with_fresh_jobs(self, max_age_seconds: float) -> Snapshot:
        return await self.poller.fresh(max_age_seconds, _REFRESH_SECONDS, jobs_only=True)

    async def _health(self, _request: HttpRequest, _caller: ViewCaller) -> ViewReply:
        age = self._age()
        is_late = age is None or age > 3 * self._config.view.poll_seconds + 60
        state = {
            "ok": not is_late and not self.poller.error,
            "age_seconds": age,
            "error": self.poller.error.message if self.poller.error else "",
        }
        return json_reply(state, 200 if state["ok"] else 503)

    async def _counters(self, _request: HttpRequest, _caller: ViewCaller) -> ViewReply:
        starts = self._expected_starts
        refused = refusals(
            self._rates, self.connections, self._extensions, self._history_cache.gate,
            starts.gate, starts.user_rates, starts.total_rate, self._reporter.gate,
        )  # fmt: skip
        counters = {
            **asdict(self.poller.counters),
            "requests": self._requests,
            "refusals": sum(refused.values()),
            "test_only_asked": self._expected_starts.asked,
            "rights_reads": self.rights.reads,
            "age_seconds": self._age(),
        }
        return json_reply(counters)

    def _age(self) -> float | None:
        current = self.poller.snapshot
        return None if current is None else current.age_seconds(time.time())


def _name_of(uid: int) -> str:
    """The name of a Unix user; empty if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def resource_request(query: Mapping[str, str]) -> ResourceRequest:
    """The request in a query; `memory_bytes` and `limit_seconds` are names of earlier releases."""
    fields: dict[str, object] = {name: value for name, value in query.items() if value}
    try:
        if "memory_bytes" in fields:
            fields["memory_gb"] = max(1, math.ceil(float(query["memory_bytes"]) / GIB))
            del fields["memory_bytes"]
        if "limit_seconds" in fields:
            fields["hours"] = float(query["limit_seconds"]) / 3600
            del fields["limit_seconds"]
        return ResourceRequest.model_validate(fields)
    except ValidationError as error:
        raise InputError(explain_first(error)) from None
    except (ValueError, OverflowError):
        raise InputError("memory_bytes or limit_seconds is not a number") from None


def _number(request: HttpRequest, name: str, default: float) -> float:
    """The query's number `name`, at least 0; InputError if it is not one."""
    try:
        return max(0.0, float(request.query.get(name, default)))
    except ValueError:
        raise InputError(f"{name} is not a number") from None
