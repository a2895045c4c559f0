"""A session's Slurm job: submitted and ended as the user, followed through `carme-view`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from carme.config import Config
from carme.errors import CarmeError, UnavailableError
from carme.helper.client import HelperClient
from carme.slurm.models import Job
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState
from carme.units import format_duration
from carme_spawner import messages
from carme_spawner.cluster_state import ClusterState

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The age of the snapshot while a user waits for the session."""
POLL_AGE_SECONDS = 30
"""The age of the snapshot for running sessions, which `carme-view` has anyway."""
CANCEL_SECONDS = 30
"""The time that Slurm may take to end a cancelled job."""
RETRY_SECONDS = (2, 60)
"""The first and the longest pause before a cancel that Slurm did not answer is repeated."""
UNSEEN_SECONDS = 15
"""A submitted job may be missing in the queue for this long without being over."""

Say = Callable[[int, str], Awaitable[None]]


class SessionEnded(Exception):
    """The job is over or has reached a limit; the message is for its user."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.message, self.reason = message, reason


@dataclass
class SavedJob:
    """The state in the hub's database, from which a restarted hub finds the session again."""

    job_id: int = 0
    token_hash: str = ""
    submitted_at: float = 0
    address: str = ""
    port: int = 0


class SessionJob:
    """The Slurm job of one session."""

    def __init__(self, config: Config, cluster_state: ClusterState, helper: HelperClient) -> None:
        self.saved = SavedJob()
        self._settings = config.session
        self._cluster_state = cluster_state
        self._helper = helper
        self._reported = asyncio.Event()
        self._submission: asyncio.Future[None] | None = None
        self.last: Job | None = None
        """The job as it was last seen."""

    def state(self) -> dict[str, Any]:
        """For the database; empty when there is no job."""
        return asdict(self.saved) if self.saved.job_id else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that an earlier hub saved."""
        names = SavedJob.__dataclass_fields__.keys() & state.keys()
        self.saved = SavedJob(**{name: state[name] for name in names})
        if self.saved.port:
            self._reported.set()

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
        """The session's address for the hub."""
        return f"http://{self.saved.address}:{self.saved.port}"

    def report(self, port: int) -> None:
        """Take note that the session listens on `port` of its node."""
        self.saved.port = port
        self._reported.set()

    async def submit(
        self,
        user: str,
        name: str,
        script: str,
        files: dict[str, str],
        token_hash: str,
        in_use: tuple[str, ...] = (),
    ) -> None:
        """Submit the job. If the caller is cancelled, the submission goes on; `end` awaits it."""

        async def submit() -> None:
            self.saved = SavedJob(token_hash=token_hash)
            self._reported.clear()
            submitted = await self._helper.submit(user, name, script, files, in_use)
            self.saved.job_id, self.saved.submitted_at = submitted.job_id, time.time()

        self._submission = asyncio.ensure_future(submit())
        await asyncio.shield(self._submission)

    async def until_up(self, say: Say) -> str:
        """The session's address, once it listens; raises SessionEnded if it never will."""
        running_since: float | None = None
        ending_since: float | None = None
        while not (self._reported.is_set() and self.saved.address):
            job = await self._look_unless_up()
            now = time.time()
            if job is not None:
                if job.state.ended:
                    raise SessionEnded(messages.ended(job), job.state.lower())
                if job.state.ending:
                    # The next state, in a moment, carries the reason.
                    ending_since = ending_since or now
                    if now - ending_since > UNSEEN_SECONDS:
                        raise SessionEnded(messages.ended(job), "ended")
                elif job.state.waiting:
                    running_since = None
                    self._check_wait(now)
                else:
                    running_since = running_since or now
                    self._check_start(now - running_since)
            await say(*await self._progress(job))
            try:
                await asyncio.wait_for(self._reported.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue
            if not self.saved.address:
                await self.look()
        return self.url

    async def _look_unless_up(self) -> Job | None:
        """The job; None also if the session reported its port meanwhile."""
        looking = asyncio.ensure_future(self.look())
        reported = asyncio.ensure_future(self._reported.wait())
        try:
            while not looking.done():
                await asyncio.wait({looking, reported}, return_when=asyncio.FIRST_COMPLETED)
                if reported.done():
                    if self.saved.address:
                        return None  # other sessions may share this read, so it is not cancelled
                    await asyncio.wait({looking})
            return looking.result()
        finally:
            reported.cancel()

    def _check_wait(self, now: float) -> None:
        limit = self._settings.wait_hours * 3600
        if now - self.saved.submitted_at > limit:
            text = (
                f"The session waited for {format_duration(limit)} in vain, which is the limit here."
            )
            raise SessionEnded(text, "wait")

    def _check_start(self, seconds: float) -> None:
        limit = self._settings.start_seconds
        if seconds > limit:
            text = f"The session did not start within {format_duration(limit)}."
            raise SessionEnded(text, "start")

    async def look(self, max_age: float = LOOK_SECONDS) -> Job | None:
        """The job in the newest snapshot; None while Slurm cannot be reached."""
        try:
            snapshot = await self._cluster_state.snapshot(max_age)
        except CarmeError:
            return None
        if snapshot.controller == "away":
            return None
        job = snapshot.job(self.saved.job_id)
        if job is None:
            return self._unlisted(snapshot)
        self.last = job
        if job.state.active and job.nodes:
            node = next((n for n in snapshot.nodes if n.name == job.nodes[0]), None)
            self.saved.address = (node.address if node else "") or job.nodes[0]
        return job

    def _unlisted(self, snapshot: Snapshot) -> Job | None:
        """A job that the queue does not list is over, unless the snapshot is older than the job."""
        if snapshot.taken_at < self.saved.submitted_at + UNSEEN_SECONDS:
            return None
        return Job(id=self.saved.job_id, state=JobState.COMPLETED)

    async def _progress(self, job: Job | None) -> tuple[int, str]:
        if job is None:
            return 10, "Slurm has the job"
        if not job.state.waiting:
            where = ", ".join(job.nodes) or "its node"
            return 60, f"Job {job.id} runs on {where}; the container starts"
        try:
            snapshot = await self._cluster_state.snapshot(LOOK_SECONDS)
        except CarmeError:
            return 20, f"Job {job.id} is {messages.waiting(job)}"
        return 20, messages.in_queue(job, snapshot.queue_position(job.id))

    async def extend(self, user: str, seconds: int) -> int:
        """Extend the job by `seconds`; its new end in Unix seconds."""
        extended = await self._helper.extend(user, self.saved.job_id, seconds)
        await self.look(0)
        return extended.ends_at or 0

    async def tail(self, user: str, name: str) -> str:
        """The last lines of the session's log; empty without a log."""
        try:
            return (await self._helper.tail_log(user, name, lines=15)).strip()
        except CarmeError:
            return ""

    async def end(self, user: str, grace_seconds: float) -> None:
        """End the job: ask the session to end, then cancel; no error if it is gone already.

        A submission that is under way is awaited first, else its job would be left over.
        """
        if self._submission and self.submitting:
            await asyncio.wait([self._submission])
        if not self.saved.job_id:
            return
        job = await self.look()
        if job is not None and _over(job):
            return
        # The session ends its kernels and then itself, and with it the job.
        was_asked = grace_seconds and self.up and await self._ask_to_end(user)
        if was_asked and await self._over_within(grace_seconds):
            return
        await self._cancel(user)
        await self._over_within(CANCEL_SECONDS if grace_seconds else 0)

    async def _cancel(self, user: str) -> None:
        """Cancel until Slurm answers: the hub forgets a stopped session, and its job would keep the
        GPUs until its time limit."""
        pause, longest = RETRY_SECONDS
        while True:
            try:
                return await self._helper.cancel(user, self.saved.job_id)
            except UnavailableError as error:
                log.warning("job %s of %s is cancelled again: %s", self.saved.job_id, user, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            job = await self.look()
            if job is not None and _over(job):
                return None

    async def _ask_to_end(self, user: str) -> bool:
        try:
            await self._helper.signal(user, self.saved.job_id, "TERM")
        except CarmeError:
            return False  # gone meanwhile, or Slurm is away: the cancel finds out
        return True

    async def _over_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = await self.look()
            if job is not None and _over(job):
                return True
            await asyncio.sleep(0.3)
        return False


def _over(job: Job) -> bool:
    return job.state.ended or job.state.ending
