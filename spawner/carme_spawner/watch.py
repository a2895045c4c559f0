"""What the hub knows of Slurm: one snapshot for all users, and what each of them may choose."""

import asyncio
import logging
import time

from carme.config import Config
from carme.errors import CarmeError
from carme.slurm.models import Choice, ExpectedStart, Snapshot
from carme.slurm.view_client import AsyncViewClient
from carme_spawner.person import Person, groups_of

log = logging.getLogger(__name__)
STALE_SECONDS = 30.0
"""What the hub holds itself longer than this is not shown; the view has something fresher."""
RIGHTS_SECONDS = 2.0
"""The form does not wait longer for accounts and QoS: it works without."""


class Watch:
    """Snapshots from `carme-view`, fetched once however many sessions wait for them."""

    def __init__(self, client: AsyncViewClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._last: Snapshot | None = None
        self._fetched = float("-inf")
        self._renewal: asyncio.Task[None] | None = None

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
        if time.time() - self._last.taken_at > max_age and not self._renewing:
            self._renewal = asyncio.create_task(self._renew(max_age))
        return self._last

    @property
    def _renewing(self) -> bool:
        return self._renewal is not None and not self._renewal.done()

    async def _renew(self, max_age: float) -> None:
        try:
            await self.snapshot(max_age)
        except CarmeError:
            try:
                self._last = await self._client.snapshot()  # says why it is not fresher
            except CarmeError as error:
                log.warning("no view of Slurm: %s", error)

    async def person(self, user: str, max_age: float | None = None) -> Person:
        """The user with groups and, if the view answers in time, rights in Slurm."""
        groups = await asyncio.to_thread(groups_of, user)
        try:
            async with asyncio.timeout(RIGHTS_SECONDS):
                rights = await self._client.rights(user, max_age)
        except (CarmeError, TimeoutError) as error:
            log.warning("accounts of %s are not known: %s", user, error or "no answer in time")
            rights = None
        return Person(user, frozenset(groups), rights)

    async def expected_start(self, choice: Choice) -> ExpectedStart:
        """When Slurm would start this; the view asks it seldom, and remembers."""
        return await self._client.expected_start(choice)


_watches: dict[str, Watch] = {}


def watch_for(config: Config) -> Watch:
    """The hub's one watch of this cluster."""
    key = str(config.view.socket)
    if key not in _watches:
        _watches[key] = Watch(AsyncViewClient(config.view.socket))
    return _watches[key]
