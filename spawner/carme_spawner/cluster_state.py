"""What the hub knows of Slurm: one snapshot for all users, and what each of them may choose."""

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
STALE_SECONDS = 60.0
"""What the hub holds itself longer than this is not shown; the view has something fresher."""
KEEP_SECONDS = 20.0
"""So often the hub takes what the view has read anyway: the form's first figures are there."""
EXPECTED_SECONDS = 0.1
RIGHTS_SECONDS = 2.0
"""The form does not wait longer for accounts and QoS: it works without."""


class ClusterState:
    """Snapshots from `carme-view`, fetched once however many sessions wait for them."""

    def __init__(self, client: AsyncViewClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._last: Snapshot | None = None
        self._fetched = float("-inf")
        self._renewal: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._asked: dict[ResourceRequest, asyncio.Future[ExpectedStart]] = {}

    async def snapshot(self, max_age: float = 5) -> Snapshot:
        """The cluster as it was at most `max_age` seconds ago, if Slurm answers."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._fetched > max_age:
                self._last = await self._client.refresh(max_age)
                self._fetched = time.monotonic()
            return self._last

    async def recent(self, max_age: float = 5) -> Snapshot:
        """What is known already, its `taken_at` saying from when: nobody waits for Slurm.

        Older than `max_age`, it is read anew meanwhile, for whoever asks next.
        """
        age = time.monotonic() - self._fetched
        if self._last is None or age > STALE_SECONDS:
            async with self._lock:
                if self._last is None or time.monotonic() - self._fetched > STALE_SECONDS:
                    self._last = await self._client.snapshot()
                    self._fetched = time.monotonic()
        if time.time() - self._last.taken_at > max_age and not _busy(self._renewal):
            self._renewal = asyncio.create_task(self._renew(max_age))
        if not _busy(self._keeper):
            self._keeper = asyncio.create_task(self._keep())
        return self._last

    async def _keep(self) -> None:
        """Hold the view's snapshot for who opens the form next; an unchanged one costs nothing."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if time.monotonic() - self._fetched < KEEP_SECONDS:
                continue
            try:
                async with self._lock:
                    self._last = await self._client.snapshot()
                    self._fetched = time.monotonic()
            except CarmeError as error:
                log.debug("no view of Slurm: %s", error)

    async def _renew(self, max_age: float) -> None:
        try:
            await self.snapshot(max_age)
        except CarmeError:
            try:
                self._last = await self._client.snapshot()  # says why it is not fresher
            except CarmeError as error:
                log.warning("no view of Slurm: %s", error)

    async def person(self, user: str, max_age: float | None = None) -> SlurmUser:
        """The user with groups and, if the view answers in time, rights in Slurm."""
        groups = await asyncio.to_thread(groups_of, user)
        try:
            async with asyncio.timeout(RIGHTS_SECONDS):
                rights = await self._client.rights(user, max_age)
        except (CarmeError, TimeoutError) as error:
            log.info("accounts of %s are not known: %s", user, error or "no answer in time")
            rights = None
        return SlurmUser(user, frozenset(groups), rights)

    async def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """When Slurm would start this; the view asks it seldom, and remembers.

        TimeoutError if it has not said so at once: who asks again a moment later finds its answer.
        """
        task = self._asked.get(choice)
        if task is None:
            task = asyncio.ensure_future(self._client.expected_start(choice))
            task.add_done_callback(lambda done: self._answered(choice, done))
            self._asked[choice] = task
        await asyncio.wait({task}, timeout=EXPECTED_SECONDS)
        if not task.done():
            raise TimeoutError
        return task.result()

    def _answered(self, choice: ResourceRequest, done: "asyncio.Future[ExpectedStart]") -> None:
        """The view remembers the answer, and also that there is none."""
        self._asked.pop(choice, None)
        if not done.cancelled():
            done.exception()


def _busy(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
