"""The hub's access to the view: one snapshot for all users, and the rights of each."""

import asyncio
import logging
import time

from carme.errors import CarmeError
from carme.requests.resource_request import ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.slurm.models import ExpectedStart
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of
from carme.view.client import AsyncViewClient

log = logging.getLogger(__name__)
STARTING_MAX_AGE_SECONDS = 1.0
"""Greatest age of the snapshot while a user waits for a session to start or to end."""
FORM_MAX_AGE_SECONDS = 5.0
"""Greatest age of the snapshot for the form, its panel and the check of its options."""
RUNNING_MAX_AGE_SECONDS = 30.0
"""Greatest age of the snapshot for running sessions; the view has a newer one anyway."""
IDLE_MAX_AGE_SECONDS = 30.0
"""Greatest age of the use of GPUs; exporters have new values every 15 s."""
EXPECTED_SECONDS = 0.1
RIGHTS_SECONDS = 2.0
"""The form waits no longer for accounts and QoS: it works without them."""


class ClusterState:
    """The view's answers. Sessions that wait at the same time share one request."""

    def __init__(self, client: AsyncViewClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._reading: tuple[float, Snapshot | CarmeError] | None = None
        """The view's last answer, and the time of the monotonic clock that it is not older than."""
        self._renewal: asyncio.Task[None] | None = None
        self._starts: dict[tuple[str, ResourceRequest], asyncio.Future[ExpectedStart]] = {}

    async def fresh_snapshot(self, max_age_seconds: float) -> Snapshot:
        """The cluster with its jobs at most `max_age_seconds` ago; its nodes may be older. May wait
        for Slurm.

        Raises UnavailableError if Slurm does not answer.
        """
        newest = self._newest(max_age_seconds)
        if newest is None:
            # Of many callers at once the first asks the view. The others get its answer, or the
            # second's if they ask for something newer.
            called_at = time.monotonic()
            async with self._lock:
                newest = self._newest(max_age_seconds) or self._read_since(called_at)
                if newest is None:
                    newest = await self._read(max_age_seconds)
        return newest

    async def _read(self, max_age_seconds: float) -> Snapshot:
        began_at = time.monotonic()
        try:
            snapshot = await self._client.refresh(max_age_seconds, jobs_only=True)
        except CarmeError as error:
            self._reading = began_at, error
            raise
        self._reading = began_at - max_age_seconds, snapshot
        return snapshot

    def _read_since(self, monotonic_seconds: float) -> Snapshot | None:
        """The view's answer to a request of that time or later; raises what it failed with."""
        read_at, answer = self._reading or (float("-inf"), None)
        if read_at < monotonic_seconds:
            return None
        if isinstance(answer, CarmeError):
            raise type(answer)(answer.message, answer.hint)
        return answer

    def _newest(self, max_age_seconds: float) -> Snapshot | None:
        newest = self._client.newest
        is_fresh = newest and newest.jobs_age_seconds(time.time()) < max_age_seconds
        return newest if is_fresh else None

    async def latest_snapshot(self, max_age_seconds: float = FORM_MAX_AGE_SECONDS) -> Snapshot:
        """The snapshot that the view has already, however old, without waiting for Slurm.

        If it is older than `max_age_seconds`, the view starts to read Slurm, for the next caller.
        """
        newest = await self._client.subscribed()
        is_renewing = self._renewal is not None and not self._renewal.done()
        if newest.age_seconds(time.time()) > max_age_seconds and not is_renewing:
            self._renewal = asyncio.create_task(self._renew(max_age_seconds))
        return newest

    async def _renew(self, max_age_seconds: float) -> None:
        try:
            await self._client.refresh(max_age_seconds)
        except CarmeError as error:
            log.info("Slurm cannot be read now: %s", error)

    async def slurm_user(self, user: str, max_age: float | None = None) -> SlurmUser:
        """The user with groups and, if the view answers in time, rights in Slurm."""
        groups = await asyncio.to_thread(groups_of, user)
        try:
            async with asyncio.timeout(RIGHTS_SECONDS):
                rights = await self._client.rights(user, max_age)
        except (CarmeError, TimeoutError) as error:
            log.info("accounts of %s are not known: %s", user, error or "no answer in time")
            rights = None
        return SlurmUser(user, frozenset(groups), rights)

    async def expected_start(self, request: ResourceRequest, user: str) -> ExpectedStart:
        """When Slurm would start this request; the view asks Slurm seldom and keeps its answers.

        Raises TimeoutError without an answer within 0.1 s; a later call gets it.
        """
        key = (user, request)
        task = self._starts.get(key)
        if task is None:
            task = asyncio.ensure_future(self._client.expected_start(request, user))
            task.add_done_callback(lambda done: self._answered(key, done))
            self._starts[key] = task
        await asyncio.wait({task}, timeout=EXPECTED_SECONDS)
        if not task.done():
            raise TimeoutError
        return task.result()

    def _answered(
        self, key: tuple[str, ResourceRequest], done: "asyncio.Future[ExpectedStart]"
    ) -> None:
        """Forget the request: the view keeps its answer, errors included."""
        self._starts.pop(key, None)
        if not done.cancelled():
            done.exception()
