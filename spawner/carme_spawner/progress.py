"""The events that the hub's page shows while a session starts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Progress:
    """The newest event; listeners get each new one."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._last_event: dict[str, Any] = {"progress": 5, "message": "Asking Slurm"}

    async def say(self, progress: int, message: str) -> None:
        """Publish an event if it differs from the last one."""
        event = {"progress": progress, "message": message}
        if event != self._last_event:
            async with self._changed:
                self._last_event = event
                self._changed.notify_all()

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """The events, without end: the hub stops listening when the session is up."""
        last: dict[str, Any] = {}
        while True:
            if self._last_event != last:
                last = self._last_event
                yield last
            async with self._changed:
                if self._last_event == last:
                    await self._changed.wait()
