"""Keeps one snapshot of Slurm up to date for all clients with as few reads as possible."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from carme.errors import CarmeError, UnavailableError
from carme.slurm.client import SlurmClient, read_snapshot
from carme.slurm.snapshot import Snapshot

log = logging.getLogger(__name__)

REFRESH_GAP_SECONDS = 1.0
"""Least time between two reads."""
STEADY_GAP_SECONDS = 2.5
"""Time between two reads while clients keep asking, as when fifty sessions start. With the reads of
nodes and partitions this makes fewer than sixty calls a minute."""
QUICK_READS = 3
"""So many reads may follow each other sooner."""
NODES_SECONDS = 8.0
"""Time between two reads of nodes while clients keep asking (two calls: scontrol also reads the
partitions). Jobs are read at every refresh."""
QUICK_NODE_READS = 2
_FIRST_BACKOFF_SECONDS = 2.0


@dataclass
class Counters:
    """Counts since the poller started."""

    reads: int = 0
    full_reads: int = 0
    errors: int = 0
    refresh_requests: int = 0
    last_read_seconds: float = 0


@dataclass
class ReadBudget:
    """Allows `burst` reads after a pause, and one more every `seconds`."""

    burst: int
    seconds: float
    _left: float = 0
    _counted_at: float = float("-inf")

    @property
    def next_at(self) -> float:
        """When the next read is allowed."""
        return self._counted_at + max(0.0, 1 - self._left) * self.seconds

    def spend(self, now: float) -> None:
        """Count a read, also one that was not allowed yet."""
        left = min(self.burst, self._left + (now - self._counted_at) / self.seconds)
        self._left, self._counted_at = max(0.0, left - 1), now


class Poller:
    """Reads everything every `poll_seconds`; jobs and nodes sooner for a refresh."""

    def __init__(
        self, client: SlurmClient, poll_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.counters = Counters()
        self.snapshot: Snapshot | None = None
        self.error: CarmeError | None = None
        self._client = client
        self._poll_seconds = poll_seconds
        self._clock = clock
        # When the last reads began: any one, and successful ones of jobs, of nodes, of everything.
        self._tried_at = self._read_at = self._nodes_read_at = self._full_read_at = float("-inf")
        # Waiting refreshes need a read of jobs, and of nodes, that began after these.
        self._needed_since = self._nodes_needed_since = float("-inf")
        self._budget = ReadBudget(QUICK_READS, STEADY_GAP_SECONDS)
        self._nodes_budget = ReadBudget(QUICK_NODE_READS, NODES_SECONDS)
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

    async def fresh(
        self, max_age_seconds: float, timeout_seconds: float, *, jobs_only: bool = False
    ) -> Snapshot:
        """A snapshot whose jobs and nodes were read at most `max_age_seconds` before this call.

        With `jobs_only` its nodes may be older. Callers share one read.

        Raises UnavailableError to every waiting caller if the read fails or takes too long.
        """
        self.counters.refresh_requests += 1
        asked_at = self._clock()
        not_before = asked_at - max_age_seconds

        def is_fresh() -> bool:
            are_nodes_fresh = jobs_only or self._nodes_read_at >= not_before
            return self._read_at >= not_before and are_nodes_fresh

        def is_answered() -> bool:
            has_failed = self.error is not None and self._tried_at >= asked_at
            return is_fresh() or has_failed

        if not is_fresh():
            self._needed_since = max(self._needed_since, not_before)
            if not jobs_only:
                self._nodes_needed_since = max(self._nodes_needed_since, not_before)
            self._wake.set()
            try:
                async with asyncio.timeout(timeout_seconds), self._changed:
                    await self._changed.wait_for(is_answered)
            except TimeoutError:
                raise UnavailableError("Slurm was not read in time") from None
        if self.snapshot is None or not is_fresh():
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
        soonest = self._budget.next_at
        if self._backoff:
            soonest = max(soonest, self._tried_at + _FIRST_BACKOFF_SECONDS)
        if self._needed_since > self._read_at:
            due = min(due, soonest)
        if self._needs_nodes:
            due = min(due, max(soonest, self._nodes_budget.next_at))
        return max(due, self._tried_at + REFRESH_GAP_SECONDS)

    @property
    def _needs_nodes(self) -> bool:
        return self._nodes_needed_since > self._nodes_read_at

    async def _read(self) -> None:
        began = self._clock()
        self._tried_at = began
        self._budget.spend(began)
        is_full = self.snapshot is None or began >= self._full_read_at + self._poll_seconds
        last = None if is_full else self.snapshot
        are_nodes_due = self._needs_nodes or began >= self._nodes_read_at + NODES_SECONDS
        with_nodes = is_full or (are_nodes_due and began >= self._nodes_budget.next_at)
        if with_nodes:
            self._nodes_budget.spend(began)
        self.counters.reads += 1
        self.counters.full_reads += is_full
        try:
            newest = await asyncio.to_thread(
                read_snapshot, self._client, last, jobs_only=not with_nodes
            )
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
            self._nodes_read_at = began if with_nodes else self._nodes_read_at
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
