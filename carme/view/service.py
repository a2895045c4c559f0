"""The requests that `carme-view` answers on its unix socket.

Readers (the hub, the service), members of the admins' group, root and its own user see every job.
Any other user sees the cluster and their own jobs.
"""

import asyncio
import hashlib
import json
import logging
import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import ValidationError

from carme.config import Config
from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError
from carme.jobs.reporter import JobReporter, parse_filter
from carme.requests.resource_request import ResourceRequest
from carme.slurm.client import Client
from carme.slurm.command_client import CommandClient
from carme.slurm.models import History, HistoryJob, Job, SlurmModel
from carme.slurm.rights import UserRights, within_rights
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of
from carme.validation import explain_first
from carme.view.expected_starts import ExpectedStarts
from carme.view.history_cache import HistoryCache
from carme.view.poller import Poller
from carme.view.rights_cache import RightsCache
from carme.view.server import HttpRequest, ViewReply, json_reply
from carme.view.time_limits import extended_limit
from carme.view.visibility import visible_to

log = logging.getLogger(__name__)

_OTHERS_MAX_AGE_SECONDS = 5.0
"""Least `max_age_seconds` for users who are not readers: they must not cause a read per second."""
_REFRESH_SECONDS = 15.0
_MAX_WAIT_SECONDS = 60.0
"""A request for the next snapshot is answered after this time even if there is none."""


class ExtendBody(SlurmModel):
    """More time for a job of one's own."""

    job_id: int
    seconds: int


class ViewService:
    """The answers to every request, from one poller."""

    def __init__(self, config: Config, client: Client, writer: CommandClient) -> None:
        self.poller = Poller(client, config.view.poll_seconds)
        self._config = config
        self._writer = writer
        self._expected_starts = ExpectedStarts(client)
        self._history_cache = HistoryCache(client)
        self.rights = RightsCache(client, config.view.rights_seconds)
        self._jobs = JobReporter(config.prometheus)
        self._names: dict[int, str] = {}
        self._bodies: dict[int | None, tuple[bytes, str]] = {}
        self._bodies_of: Snapshot | None = None
        self._extend_lock = asyncio.Lock()
        self._requests = 0

    async def answer(self, request: HttpRequest) -> ViewReply:
        """Route one request."""
        self._requests += 1
        user = await self._user(request.uid)
        path = request.path
        if path == "/snapshot":
            return await self._snapshot(request, user)
        if path.startswith("/jobs/") and path[6:].isdecimal():
            return _model_reply(self._job(int(path[6:]), request.uid, user))
        if path == "/healthz":
            return self._health()
        if path == "/counters":
            return self._counters()
        if path == "/expected-start":
            return await self._expected_start(request, user)
        if path == "/rights":
            return _model_reply(await self._rights(request, user))
        if path == "/history":
            return _model_reply(await self._history(request, user))
        if path in ("/reports", "/idle") or path.startswith("/reports/"):
            return _model_reply(await self._about_jobs(request, user))
        if path in ("/refresh", "/extend"):
            if request.method != "POST":
                raise InputError(f"{path} takes POST")
            if path == "/refresh":
                return await self._refresh(request, user)
            return _model_reply(await self._extend(request, user))
        raise MissingError(f"nothing is served at {path}")

    def _reads_all(self, uid: int, user: str) -> bool:
        return uid in (0, os.geteuid()) or user in self._config.view.readers

    async def _user(self, uid: int) -> str:
        """The name of a uid, looked up once: the directory service may be slow."""
        if uid not in self._names:
            try:
                self._names[uid] = (await asyncio.to_thread(pwd.getpwuid, uid)).pw_name
            except KeyError:
                return ""
        return self._names[uid]

    def _current(self) -> Snapshot:
        if self.poller.snapshot is None:
            raise self.poller.error or UnavailableError("Slurm has not been read yet")
        return self.poller.snapshot

    async def _snapshot(self, request: HttpRequest, user: str) -> ViewReply:
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
                    etag is not None and etag != self._body(request.uid, user)[1]
                )

            await self.poller.wait_until(is_new, wait)
        return self._snapshot_reply(request, user)

    def _snapshot_reply(self, request: HttpRequest, user: str) -> ViewReply:
        taken_at = self._current().taken_at
        body, etag = self._body(request.uid, user)
        headers = {"ETag": etag, "Carme-Taken-At": repr(taken_at)}
        if request.headers.get("if-none-match") == etag:
            return ViewReply(304, b"", headers)
        return ViewReply(200, body, headers)

    def _body(self, uid: int, user: str) -> tuple[bytes, str]:
        """The current snapshot as JSON for this user, and its ETag.

        Each is written once per reading and user: a thousand nodes and their jobs take a while.
        """
        current = self._current()
        if self._bodies_of is not current:
            self._bodies_of, self._bodies = current, {}
        viewer = None if self._reads_all(uid, user) else uid
        if viewer not in self._bodies:
            visible = current if viewer is None else visible_to(current, user, uid)
            body = visible.model_dump_json().encode()
            # The ETag leaves the time out: an unchanged cluster is not sent again.
            content = body.removeprefix(b'{"taken_at":' + json.dumps(visible.taken_at).encode())
            self._bodies[viewer] = (body, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        return self._bodies[viewer]

    def _job(self, job_id: int, uid: int, user: str) -> Job:
        current = self._current()
        visible = current if self._reads_all(uid, user) else visible_to(current, user, uid)
        job = visible.job(job_id)
        if not job:
            # The same message for another user's job: its existence is private.
            raise MissingError(f"no job {job_id} in the queue")
        return job

    async def _refresh(self, request: HttpRequest, user: str) -> ViewReply:
        """The snapshot once it is no older than asked for."""
        max_age = _number(request, "max_age_seconds", 0)
        if not self._reads_all(request.uid, user):
            max_age = max(max_age, _OTHERS_MAX_AGE_SECONDS)
        await self.poller.fresh(max_age, _REFRESH_SECONDS)
        return self._snapshot_reply(request, user)

    async def _expected_start(self, request: HttpRequest, user: str) -> ViewReply:
        if not self._reads_all(request.uid, user):
            raise DeniedError("only readers of the view may ask for an expected start")
        try:
            choice = ResourceRequest.model_validate(
                {k: v for k, v in request.query.items() if k in ResourceRequest.model_fields and v}
            )
        except ValidationError as error:
            raise InputError(explain_first(error)) from None
        # `sbatch --test-only` runs as the view's user, who may have fewer rights than the caller.
        try:
            own = await self.rights.of(await self._user(os.geteuid()))
        except CarmeError as error:
            log.debug("expected start without account and QoS: %s", error)
            own = UserRights(user="")
        return _model_reply(await self._expected_starts.expected_start(within_rights(choice, own)))

    async def _rights(self, request: HttpRequest, user: str) -> UserRights:
        """Accounts and QoS of the named user; only readers may name another user."""
        name = request.query.get("user", user)
        if name != user and not self._reads_all(request.uid, user):
            raise DeniedError("only readers of the view may ask for other users' rights")
        if not name:
            raise DeniedError("you have no user name here")
        keep = self._config.view.rights_seconds
        return await self.rights.of(name, min(keep, _number(request, "max_age_seconds", keep)))

    async def _history(self, request: HttpRequest, user: str) -> History:
        """Jobs of all users for readers; the caller's own for others."""
        try:
            since = int(request.query.get("since", ""))
            until = int(request.query["until"]) if "until" in request.query else None
        except ValueError:
            raise InputError("since and until are Unix seconds") from None
        if self._reads_all(request.uid, user):
            return await self._history_cache.history(since, until, "")
        if not user:
            raise DeniedError("you have no user name here")
        return await self._history_cache.history(since, until, user)

    async def _about_jobs(self, request: HttpRequest, user: str) -> SlurmModel:
        """Reports from Slurm's records and Prometheus' metrics, of jobs that the caller may see."""
        uid, path = request.uid, request.path
        sees_all = self._reads_all(uid, user)
        if path == "/idle":
            if not sees_all:
                raise DeniedError("only readers of the view may ask who is idle")
            return await self._jobs.idle(*_idle_query(request.query))
        if not user:
            raise DeniedError("you have no user name here")
        groups = await asyncio.to_thread(groups_of, user)
        sees_all = sees_all or self._config.hub.admins_group in groups
        current = self._current()
        visible = current if sees_all else visible_to(current, user, uid)

        async def history(since: int, until: int | None) -> tuple[HistoryJob, ...]:
            return (await self._history_cache.history(since, until, "" if sees_all else user)).jobs

        number = path.removeprefix("/reports/")
        if number.isdecimal():
            return await self._jobs.report(int(number), visible, history)
        if path != "/reports":
            raise InputError(f"{number[:40]!r} is not the number of a job")
        return await self._jobs.listing(parse_filter(request.query), visible, history)

    async def _extend(self, request: HttpRequest, user: str) -> Job:
        try:
            extension = ExtendBody.model_validate(request.json())
        except ValidationError:
            raise InputError("job_id and seconds must be whole numbers") from None
        async with self._extend_lock:
            # One at a time, each on a new reading: `seconds` is added to the limit in it.
            current = await self.poller.fresh(_OTHERS_MAX_AGE_SECONDS, _REFRESH_SECONDS)
            if not current.job(extension.job_id):  # perhaps it has only just been submitted
                current = await self.poller.fresh(0, _REFRESH_SECONDS)
            job = self._job(extension.job_id, request.uid, user)
            rights, rules = await self.rights.of(user), self._config.view
            limit = extended_limit(
                job, extension.seconds, request.uid, user, current, rights, rules, time.time()
            )
            await asyncio.to_thread(self._writer.extend, job, limit)
            log.info("job %d of %s: time limit is now %d s", extension.job_id, user, limit)
            current = await self.poller.fresh(0, _REFRESH_SECONDS)
        return current.job(extension.job_id) or job

    def _health(self) -> ViewReply:
        age = self._age()
        late = age is None or age > 3 * self._config.view.poll_seconds + 60
        state = {
            "ok": not late and not self.poller.error,
            "age_seconds": age,
            "error": self.poller.error.message if self.poller.error else "",
        }
        return json_reply(state, 200 if state["ok"] else 503)

    def _counters(self) -> ViewReply:
        own = asdict(self.poller.counters)
        more = {"requests": self._requests, "test_only_asked": self._expected_starts.asked}
        more["rights_reads"] = self.rights.reads
        return json_reply({**own, **more, "age_seconds": self._age()})

    def _age(self) -> float | None:
        current = self.poller.snapshot
        return None if current is None else current.age_seconds(time.time())


def _number(request: HttpRequest, name: str, default: float) -> float:
    """The query's number `name`, at least 0; InputError if it is not one."""
    try:
        return max(0.0, float(request.query.get(name, default)))
    except ValueError:
        raise InputError(f"{name} is not a number") from None


def _idle_query(query: Mapping[str, str]) -> tuple[list[int], float]:
    """The job ids and the seconds in the query of `/idle`."""
    try:
        jobs = [int(word) for word in query.get("jobs", "").split(",") if word]
        seconds = float(query.get("seconds", ""))
    except ValueError:
        raise InputError("jobs are numbers with commas between them, seconds a number") from None
    if not 0 < seconds <= 86400 * 30:
        raise InputError("seconds must be above 0 and within 30 days")
    return jobs, seconds


def _model_reply(model: SlurmModel) -> ViewReply:
    return ViewReply(200, model.model_dump_json().encode())
