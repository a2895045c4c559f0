"""Keeps one snapshot of Slurm up to date for all clients with as few reads as possible."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from carme.errors import CarmeError, UnavailableError
from carme.slurm.client import Client, snapshot
from carme.slurm.snapshot import Snapshot

log = logging.getLogger(__name__)

REFRESH_GAP_SECONDS = 1.0
"""Least time between two reads, for the first QUICK_READS of a series of refreshes."""
QUICK_READS = 3
STEADY_GAP_SECONDS = 2.3
"""Time between two reads while clients keep asking, as when fifty sessions start: with the reads of
nodes and partitions this makes fewer than sixty calls a minute."""
NODES_SECONDS = 8.0
"""Least time between two reads of nodes (two calls: scontrol also reads the partitions). Jobs are
read at every refresh."""
_FIRST_BACKOFF_SECONDS = 2.0


@dataclass
class Counters:
    """What the poller did since it started."""

    reads: int = 0
    full_reads: int = 0
    errors: int = 0
    refresh_requests: int = 0
    last_read_seconds: float = 0


class Poller:
    """Reads everything every `poll_seconds`; jobs and nodes sooner for a refresh."""

    def __init__(
        self, client: Client, poll_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.counters = Counters()
        self.snapshot: Snapshot | None = None
        self.error: CarmeError | None = None
        self._client = client
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._began = float("-inf")  # when the last successful read began
        self._tried = float("-inf")  # when the last read of any kind began
        self._full = float("-inf")  # when the last successful full read began
        self._nodes = float("-inf")  # when the last successful read of nodes began
        self._quick = float(QUICK_READS)  # quick reads left; a new one every steady gap
        self._needed = float("-inf")  # a waiting refresh needs a read from after this
        self._backoff = 0.0
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            delay = self._next() - self._clock()
            if delay > 0:
                self._wake.clear()
                try:
                    await asyncio.wait_for(self._wake.wait(), delay)
                except TimeoutError:
                    pass
                else:
                    continue  # a refresh came: the next read is due at another time
            await self._read()

    async def fresh(self, max_age_seconds: float, timeout_seconds: float) -> Snapshot:
        """A snapshot begun at most `max_age_seconds` before this call; callers share one read.

        Raises UnavailableError to every waiting caller if the read fails or takes too long.
        """
        self.counters.refresh_requests += 1
        asked_at = self._clock()
        not_before = asked_at - max_age_seconds
        if self._began < not_before:
            self._needed = max(self._needed, not_before)
            self._wake.set()
            try:
                async with asyncio.timeout(timeout_seconds), self._changed:
                    await self._changed.wait_for(
                        lambda: (
                            self._began >= not_before or (self.error and self._tried >= asked_at)
                        )
                    )
            except TimeoutError:
                raise UnavailableError("no fresh reading of Slurm in time") from None
        if self.snapshot is None or self._began < not_before:
            raise self.error or UnavailableError("Slurm has not been read yet")
        return self.snapshot

    async def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until `condition` holds, which is checked after every read; no read is asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds), self._changed:
                await self._changed.wait_for(condition)

    def _next(self) -> float:
        """When the next read is due."""
        backoff = self._tried + self._backoff
        due = backoff if self._backoff else self._full + self._poll_seconds
        if self._needed > self._began:
            quick = REFRESH_GAP_SECONDS if self._quick >= 1 else STEADY_GAP_SECONDS
            gap = _FIRST_BACKOFF_SECONDS if self._backoff else quick
            due = min(due, self._tried + gap)
        return max(due, self._tried + REFRESH_GAP_SECONDS)

    async def _read(self) -> None:
        began = self._clock()
        # One quick read is regained for every steady gap without reads.
        regained = (began - self._tried) / STEADY_GAP_SECONDS - 1
        self._quick = min(QUICK_READS, max(0.0, self._quick + regained))
        self._tried = began
        full = self.snapshot is None or began >= self._full + self._poll_seconds
        last = None if full else self.snapshot
        jobs_only = began < self._nodes + NODES_SECONDS
        self.counters.reads += 1
        self.counters.full_reads += full
        try:
            taken = await asyncio.to_thread(snapshot, self._client, last, jobs_only=jobs_only)
        except CarmeError as error:
            self._failed(error)
        except Exception as error:
            # A bug in reading must not end the process that all others read from.
            log.exception("reading Slurm failed")
            self._failed(UnavailableError(f"reading Slurm failed: {type(error).__name__}"))
        else:
            if self.error:
                log.info("Slurm is back")
            self.snapshot, self.error, self._backoff = taken, None, 0.0
            self._began = began
            self._full = began if full else self._full
            self._nodes = began if full or not jobs_only else self._nodes
        self.counters.last_read_seconds = self._clock() - began
        async with self._changed:
            self._changed.notify_all()

    def _failed(self, error: CarmeError) -> None:
        self.counters.errors += 1
        if not self.error or self.error.message != error.message:
            log.warning("Slurm cannot be read: %s", error)
        self.error = error
        longest = max(self._poll_seconds, _FIRST_BACKOFF_SECONDS)
        self._backoff = min(max(self._backoff * 2, _FIRST_BACKOFF_SECONDS), longest)
        if self.snapshot:
            changed = {"controller": "away", "error": error.message}
            self.snapshot = self.snapshot.model_copy(update=changed)
