"""What the hub's page shows while a session starts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Progress:
    """The last line said; whoever listens gets a line whenever it changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._said: dict[str, Any] = {"progress": 5, "message": "Asking Slurm"}

    async def say(self, progress: int, message: str) -> None:
        """Say it, if it is new."""
        event = {"progress": progress, "message": message}
        if event != self._said:
            async with self._changed:
                self._said = event
                self._changed.notify_all()

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Without end: the hub stops listening when the server is up."""
        last: dict[str, Any] = {}
        while True:
            if self._said != last:
                last = self._said
                yield last
            async with self._changed:
                if self._said == last:
                    await self._changed.wait()
