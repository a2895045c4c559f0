"""The rights of all users, read at once and kept: slurmdbd is slow and may be away."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from carme.errors import CarmeError, UnavailableError
from carme.slurm.client import Client
from carme.slurm.rights import Rights, UserRights

log = logging.getLogger(__name__)

RETRY_SECONDS = 15.0
"""Time between two reads while slurmdbd is away, or for users who are in none of the readings."""
_WAIT_SECONDS = 1.0
"""How long a request waits for a fresher reading when there is an older one."""
_FIRST_WAIT_SECONDS = 8.0


class RightsCache:
    """The last reading, renewed after `keep_seconds`, or sooner for a user who is not in it."""

    def __init__(
        self, client: Client, keep_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.reads = 0
        self._client = client
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._rights: Rights | None = None
        self._error: CarmeError | None = None
        self._taken_at = 0.0
        self._read_at = float("-inf")
        self._tried = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        """Read before the first request; if that fails, requests get the error."""
        with suppress(CarmeError):
            await self.of("root")

    async def of(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """The user's rights; UnavailableError only if nothing was ever read.

        With `max_age_seconds` not older than that, if slurmdbd answers; at least RETRY_SECONDS.
        """
        keep = self._keep_seconds if max_age_seconds is None else max_age_seconds
        if self._due(user, keep):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            wait = _FIRST_WAIT_SECONDS if self._rights is None else _WAIT_SECONDS
            # Not cancelled when it takes longer: the next request finds its result.
            await asyncio.wait({self._reading}, timeout=wait)
        if self._rights is None:
            raise self._error or UnavailableError("accounts and QoS have not been read yet")
        error = self._error.message if self._error else ""
        return self._rights.of(user, self._taken_at, error)

    def _due(self, user: str, keep: float) -> bool:
        now = self._clock()
        if now - self._tried < RETRY_SECONDS and (self._rights or self._error):
            return False
        if self._rights is None or self._error:
            return True
        return now - self._read_at >= keep or not self._rights.knows(user)

    async def _read(self) -> None:
        began = self._tried = self._clock()
        taken_at = time.time()
        self.reads += 1
        try:
            self._rights = await asyncio.to_thread(self._client.rights)
        except CarmeError as error:
            if not self._error:
                log.warning("accounts and QoS cannot be read: %s", error)
            self._error = error
        except Exception as error:
            log.exception("reading accounts and QoS failed")
            self._error = UnavailableError(f"reading failed: {type(error).__name__}")
        else:
            self._taken_at, self._read_at, self._error = taken_at, began, None
