"""A session's Slurm job: submitted and ended as the user, followed through `carme-view`."""

import asyncio
import logging
import pwd
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from carme.errors import CarmeError, UnavailableError
from carme.slurm.models import Job
from carme.slurm.states import JobState
from carme.units import format_duration
from carme_spawner import messages
from carme_spawner.cluster_state import STARTING_MAX_AGE_SECONDS
from carme_spawner.context import HubContext
from carme_spawner.messages import SessionFailure
from carme_spawner.session_certificates import host_name
from carme_spawner.session_files import NAME_PREFIX

log = logging.getLogger(__name__)

CANCEL_SECONDS = 30
"""The time that Slurm may take to end a cancelled job."""
RETRY_SECONDS = (2, 60)
"""The first and the longest pause before a cancel that Slurm did not answer is repeated."""
CONFIRM_SECONDS = 2
"""The pause before Slurm is read again for a job that must be ended, but is not confirmed yet."""
UNSEEN_SECONDS = 15
"""A submitted job may be missing in the queue for this long without being over."""


@dataclass
class SavedJob:
    """The state in the hub's database, from which a restarted hub finds the session again."""

    job_id: int = 0
    token_hash: str = ""
    submitted_at: float = 0
    address: str = ""
    port: int = 0
    submission: str = ""
    """The random number in the job's comment, drawn by the hub for this submission."""
    slurm_submitted_at: int = 0
    """When Slurm took the job, from Slurm; 0 until the job is confirmed to be this session's."""


class SessionJob:
    """The Slurm job of one session. `name` is the session's folder below ~/.carme/sessions."""

    def __init__(self, context: HubContext, user: str, name: str) -> None:
        self.saved = SavedJob()
        self._context = context
        self._user, self._name = user, name
        self._reported = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._submission: asyncio.Future[None] | None = None
        self._address_problem = ""
        self._found_node = ""
        self._uid: int | None = None
        self.last: Job | None = None
        """The job as it was last seen."""
        self.event: dict[str, Any] = {"progress": 5, "message": "Submitting the job to Slurm"}
        """The event that the hub's page shows while the session starts."""

    def state(self) -> dict[str, Any]:
        """For the database; empty when there is no job."""
        return asdict(self.saved) if self.saved.job_id else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that an earlier hub saved."""
        names = SavedJob.__dataclass_fields__.keys() & state.keys()
        self.saved = SavedJob(**{name: state[name] for name in names})
        if self.saved.port:
            self._reported.set()
        if self.saved.slurm_submitted_at:
            self._confirmed.set()

    @property
    def submitting(self) -> bool:
        """Whether a submission is under way."""
        return self._submission is not None and not self._submission.done()

    @property
    def up(self) -> bool:
        """Whether the session has reported its port."""
        return self._reported.is_set()

    @property
    def url(self) -> str:
        """The session's address for the hub and its proxy, which check the name in it."""
        saved = self.saved
        if not saved.submission:  # submitted by an older release of the hub, without a certificate
            return f"http://{saved.address}:{saved.port}"
        return f"https://{host_name(saved.address, saved.submission)}:{saved.port}"

    def report(self, port: int) -> None:
        """Record that the session listens on `port` of its node."""
        self.saved.port = port
        self._reported.set()

    async def submit(
        self,
        script: str,
        files: dict[str, str],
        token_hash: str,
        submission: str,
        in_use: tuple[str, ...] = (),
    ) -> None:
        """Submit the job. If the caller is cancelled, the submission goes on; `end` awaits it.

        `submission` is the random number in the comment of the script's job.
        """

        async def submit() -> None:
            self.saved = SavedJob(token_hash=token_hash, submission=submission)
            self._reported.clear()
            self._confirmed.clear()
            helper = self._context.helper
            submitted = await helper.submit(self._user, self._name, script, files, in_use)
            self.saved.job_id, self.saved.submitted_at = submitted.job_id, time.time()

        self._submission = asyncio.ensure_future(submit())
        await asyncio.shield(self._submission)

    async def confirmed_id(self) -> int:
        """The job's id, once Slurm has shown that it is this session's."""
        await self._confirmed.wait()
        return self.saved.job_id

    async def until_up(self) -> str:
        """The session's address, once it listens; raises SessionFailure if it never will."""
        settings = self._context.config.session
        wait_seconds = settings.wait_hours * 3600
        running_since: float | None = None
        ending_since: float | None = None
        while not (self.up and self.saved.address):
            job = await self._read_job_unless_up()
            now = time.time()
            if job is not None:
                if job.state.ended:
                    raise await self._failure(messages.ended(job), job.state.lower())
                if job.state.ending:
                    # The next state, in a moment, carries the reason.
                    ending_since = ending_since or now
                    if now - ending_since > UNSEEN_SECONDS:
                        raise await self._failure(messages.ended(job), "ended")
                elif job.state.waiting:
                    running_since = None
                    if now - self.saved.submitted_at > wait_seconds:
                        limit = format_duration(wait_seconds)
                        text = f"The session waited for {limit}, the longest that this site allows."
                        raise await self._failure(text, "wait")
                else:
                    running_since = running_since or now
                    if now - running_since > settings.start_seconds:
                        limit = format_duration(settings.start_seconds)
                        text = f"The session did not start within {limit}.{self._address_problem}"
                        raise await self._failure(text, "start")
            progress, text = await self._progress(job)
            self.event = {"progress": progress, "message": text}
            try:
                await asyncio.wait_for(self._reported.wait(), STARTING_MAX_AGE_SECONDS)
            except TimeoutError:
                continue
            if not self.saved.address:
                await self.read_job()
            if not self.saved.address:
                await asyncio.sleep(STARTING_MAX_AGE_SECONDS)
        self.event = {"progress": 90, "message": "The session is up"}
        return self.url

    async def _failure(self, message: str, reason: str) -> SessionFailure:
        """The failure of the start, with the end of the session's log if there is one."""
        try:
            tail = await self._context.helper.tail_log(self._user, self._name, lines=15)
        except CarmeError:
            tail = ""
        return SessionFailure(message, reason=reason, log=tail.strip(), status_code=500)

    async def _read_job_unless_up(self) -> Job | None:
        """The job; None also if the session reported its port meanwhile."""
        reading = asyncio.ensure_future(self.read_job())
        reported = asyncio.ensure_future(self._reported.wait())
        try:
            while not reading.done():
                await asyncio.wait({reading, reported}, return_when=asyncio.FIRST_COMPLETED)
                if reported.done():
                    if self.saved.address:
                        return None  # other sessions may share this read, so it is not cancelled
                    await asyncio.wait({reading})
            return reading.result()
        finally:
            reported.cancel()

    async def read_job(self, max_age_seconds: float = STARTING_MAX_AGE_SECONDS) -> Job | None:
        """The job in a snapshot of at most this age; None while Slurm cannot be reached.

        Raises SessionFailure if the job with this session's id is not this session's.
        """
        try:
            snapshot = await self._context.cluster_state.fresh_snapshot(max_age_seconds)
        except CarmeError:
            return None
        if snapshot.controller == "away":
            return None
        job = snapshot.job(self.saved.job_id)
        if job is None:
            # A job that the queue does not list is over, unless the snapshot is older than the job.
            if snapshot.taken_at < self.saved.submitted_at + UNSEEN_SECONDS:
                return None
            return Job(id=self.saved.job_id, state=JobState.COMPLETED)
        await self._check_identity(job)
        self.last = job
        if job.state.active and job.nodes:
            node = next((n for n in snapshot.nodes if n.name == job.nodes[0]), None)
            await self._find((node.address if node else "") or job.nodes[0])
        return job

    async def _find(self, node: str) -> None:
        """Save the IP address of the job's node, which Slurm may know by name.

        One of IPv4 if there is one, as the launcher listens; a node is looked up once.
        """
        if node == self._found_node:
            return
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(
                node, None, type=socket.SOCK_STREAM
            )
        except OSError as error:
            log.warning("session %s of %s: node %s: %s", self._name, self._user, node, error)
            self._address_problem = f" The hub cannot find the address of {node}: {error}."
            return
        info = min(infos, key=lambda info: info[0] != socket.AF_INET)
        self.saved.address, self._address_problem = str(info[4][0]), ""
        self._found_node = node

    async def _check_identity(self, job: Job) -> None:
        """Raise SessionFailure unless `job` is the one that this session submitted.

        Its number comes from the helper, which runs as the user, who may replace its answer. So the
        job must be the user's and hold the random number of the submission. Once it is confirmed,
        Slurm's time of submission is enough: users may change the comments of their jobs.
        """
        saved, name = self.saved, f"{NAME_PREFIX}{self._name}"
        # The number is empty for a session that an older release of the hub submitted.
        is_submitted = job.name == name and saved.submission in job.comment
        is_confirmed = self._confirmed.is_set() and job.submitted_at == saved.slurm_submitted_at
        if await self._is_owner(job) and (is_submitted or is_confirmed):
            if job.submitted_at:
                saved.slurm_submitted_at = job.submitted_at
                self._confirmed.set()
            return
        log.warning(
            "session %s of %s: job %s, which was reported as the session's, is job %r of %s with "
            "comment %r; the hub does not touch it",
            self._name, self._user, job.id, job.name[:100], job.user, job.comment[:200],
        )  # fmt: skip
        raise SessionFailure(messages.FOREIGN_JOB, reason="job", status_code=500)

    async def _is_owner(self, job: Job) -> bool:
        """The job is the user's: by name while the directory service does not know the user's uid.

        A failed lookup is not kept: an outage of that service must not end sessions.
        """
        if self._uid is None:
            try:
                self._uid = (await asyncio.to_thread(pwd.getpwnam, self._user)).pw_uid
            except (KeyError, OSError):
                log.warning("the uid of %s is not known now", self._user)
                return job.user == self._user
        return job.is_owned_by(self._user, self._uid)

    async def _progress(self, job: Job | None) -> tuple[int, str]:
        if job is None:
            return 10, "Slurm has the job"
        if not job.state.waiting:
            nodes = ", ".join(job.nodes) or "its node"
            return 60, f"Job {job.id} runs on {nodes}; the container starts"
        try:
            state = self._context.cluster_state
            snapshot = await state.fresh_snapshot(STARTING_MAX_AGE_SECONDS)
        except CarmeError:
            return 20, f"Job {job.id} is {messages.waiting(job)}"
        return 20, messages.in_queue(job, snapshot.queue_position(job.id))

    async def extend(self, seconds: int) -> int:
        """Extend the job by `seconds`; returns its new end in Unix seconds."""
        if await self.read_job() is None and not self._confirmed.is_set():
            raise UnavailableError("Slurm cannot be read at the moment", "try again in a minute")
        extended = await self._context.helper.extend(self._user, self.saved.job_id, seconds)
        job = await self.read_job(0)
        return (job.ends_at if job else extended.ends_at) or 0

    async def end(self, grace_seconds: float) -> None:
        """End the job: ask the session to end, then cancel; no error if it is gone already.

        A submission that is under way is awaited first, else its job would be left over.
        """
        if self._submission and self.submitting:
            await asyncio.wait([self._submission])
        if not self.saved.job_id or not await self._is_alive():
            return
        if grace_seconds and self.up:
            # The session ends its kernels and then itself, and with it the job.
            try:
                await self._context.helper.signal(self._user, self.saved.job_id, "TERM")
            except CarmeError as error:
                # Gone meanwhile, or Slurm is away: the cancel finds out.
                log.info("job %s cannot be asked to end: %s", self.saved.job_id, error)
            else:
                if await self._has_ended_within(grace_seconds):
                    return
        await self._cancel()
        await self._has_ended_within(CANCEL_SECONDS if grace_seconds else 0)

    async def _cancel(self) -> None:
        """Cancel until Slurm answers: the hub forgets a stopped session, and its job would keep the
        GPUs until its time limit."""
        job_id, (pause, longest) = self.saved.job_id, RETRY_SECONDS
        while True:
            try:
                return await self._context.helper.cancel(self._user, job_id)
            except UnavailableError as error:
                log.warning("job %s of %s is cancelled again: %s", job_id, self._user, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            if await self._has_ended():
                return None

    async def _is_alive(self) -> bool:
        """Whether this session's job is there to be ended; unknown counts as alive.

        Waits while it is not confirmed that the job is this session's: no other job is touched.
        """
        while not await self._has_ended():
            if self._confirmed.is_set():
                return True
            await asyncio.sleep(CONFIRM_SECONDS)
        return False

    async def _has_ended(self) -> bool:
        try:
            job = await self.read_job()
        except SessionFailure:
            return True  # there is a job of this number, but it is not this session's
        return job is not None and (job.state.ended or job.state.ending)

    async def _has_ended_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if await self._has_ended():
                return True
            await asyncio.sleep(0.3)
        return False
