"""What the hub knows of Slurm: one snapshot for all users."""

import asyncio
import time

from carme.config import Config
from carme.slurm.models import Choice, ExpectedStart, Snapshot
from carme.slurm.view_client import AsyncViewClient


class Watch:
    """Snapshots from `carme-view`, fetched once however many sessions wait for them."""

    def __init__(self, client: AsyncViewClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._last: Snapshot | None = None
        self._fetched = float("-inf")

    async def snapshot(self, max_age: float = 5) -> Snapshot:
        """The cluster as it was at most `max_age` seconds ago, if Slurm answers."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._fetched > max_age:
                self._last = await self._client.refresh(max_age)
                self._fetched = time.monotonic()
            return self._last

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
