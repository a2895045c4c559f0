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
"""Time between two reads while clients keep asking, as when fifty sessions start. With the reads of
nodes and partitions this makes fewer than sixty calls a minute."""
NODES_SECONDS = 8.0
"""Least time between two reads of nodes (two calls: scontrol also reads the partitions). Jobs are
read at every refresh."""
_FIRST_BACKOFF_SECONDS = 2.0


@dataclass
class Counters:
    """Counts since the poller started."""

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
        # When the last reads began: any one, and successful ones of jobs, of nodes, of everything.
        self._tried_at = self._read_at = self._nodes_read_at = self._full_read_at = float("-inf")
        self._needed_since = float("-inf")  # a waiting refresh needs a read from after this
        self._quick_reads = float(QUICK_READS)  # left; one more every steady gap
        self._backoff = 0.0
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            delay = self._next_read_at() - self._clock()
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
        if self._read_at < not_before:
            self._needed_since = max(self._needed_since, not_before)
            self._wake.set()

            def is_answered() -> bool:
                has_failed = self.error is not None and self._tried_at >= asked_at
                return self._read_at >= not_before or has_failed

            try:
                async with asyncio.timeout(timeout_seconds), self._changed:
                    await self._changed.wait_for(is_answered)
            except TimeoutError:
                raise UnavailableError("Slurm was not read in time") from None
        if self.snapshot is None or self._read_at < not_before:
            raise self.error or UnavailableError("Slurm has not been read yet")
        return self.snapshot

    async def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until `condition` holds, which is checked after every read; causes no read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds), self._changed:
                await self._changed.wait_for(condition)

    def _next_read_at(self) -> float:
        """When the next read is due."""
        backoff = self._tried_at + self._backoff
        due = backoff if self._backoff else self._full_read_at + self._poll_seconds
        if self._needed_since > self._read_at:
            gap = REFRESH_GAP_SECONDS if self._quick_reads >= 1 else STEADY_GAP_SECONDS
            gap = _FIRST_BACKOFF_SECONDS if self._backoff else gap
            due = min(due, self._tried_at + gap)
        return max(due, self._tried_at + REFRESH_GAP_SECONDS)

    async def _read(self) -> None:
        began = self._clock()
        # One quick read is regained for every steady gap without reads.
        regained = (began - self._tried_at) / STEADY_GAP_SECONDS - 1
        self._quick_reads = min(QUICK_READS, max(0.0, self._quick_reads + regained))
        self._tried_at = began
        is_full = self.snapshot is None or began >= self._full_read_at + self._poll_seconds
        last = None if is_full else self.snapshot
        jobs_only = began < self._nodes_read_at + NODES_SECONDS
        self.counters.reads += 1
        self.counters.full_reads += is_full
        try:
            newest = await asyncio.to_thread(snapshot, self._client, last, jobs_only=jobs_only)
        except CarmeError as error:
            self._failed(error)
        except Exception as error:
            # A bug in reading must not end the process that all others read from.
            log.exception("reading Slurm failed")
            self._failed(UnavailableError(f"reading Slurm failed: {type(error).__name__}"))
        else:
            if self.error:
                log.info("Slurm is back")
            self.snapshot, self.error, self._backoff = newest, None, 0.0
            self._read_at = began
            self._full_read_at = began if is_full else self._full_read_at
            self._nodes_read_at = began if is_full or not jobs_only else self._nodes_read_at
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
            away = {"controller": "away", "error": error.message}
            self.snapshot = self.snapshot.model_copy(update=away)
