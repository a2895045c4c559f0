"""Which job is on this node, from when to when, and which GPUs it holds.

The prolog's record says so. A site without the prolog still gets its jobs from their cgroups.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carme.node.gpu_allocations import CounterReading, GpuAllocation
from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.energy.shares import GpuSlot, JobPresence
from carme_monitoring.gpus import GpuReading
from carme_monitoring.samples import Samples

_AWAY_NS = 300 * 10**9
"""A cgroup goes before the epilog runs; a job without one for longer has lost its epilog."""


@dataclass
class Entry:
    """A job as the exporter knows it."""

    jobid: int
    start_ns: int
    end_ns: int | None = None
    user: str = ""
    account: str = ""
    partition: str = ""
    uid: int = -1
    gpus: tuple[int, ...] = ()
    """Slurm's indices."""
    cpus: float = 0.0
    memory_bytes: float = 0.0
    profile: bool = False
    has_record: bool = True
    restart: int = 0
    is_seen: bool = False
    """Its cgroup was there at least once."""
    away_ns: int | None = None
    """When that was first found to be gone."""
    start_time: float = 0.0
    end_time: float | None = None

    def presence(self, slots: Sequence[GpuSlot]) -> JobPresence:
        """The job for the ledger."""
        held = tuple(slots[index].name for index in self.gpus if index < len(slots))
        return JobPresence(
            self.jobid, self.start_ns, self.end_ns, held, self.cpus, self.memory_bytes
        )


@dataclass(frozen=True)
class Change:
    """A job came or went at `at_ns`; `reading` is what the hook read then, if it did."""

    at_ns: int
    is_start: bool
    holding: GpuAllocation
    reading: CounterReading | None


class JobTable:
    """The node's jobs, including those that ended a while ago."""

    def __init__(self, keep_seconds: float = 300) -> None:
        self.entries: dict[int, Entry] = {}
        self.closed: set[tuple[int, int]] = set()
        """(job, restart) that are over without an epilog: their records stay open for ever."""
        self._keep_ns = round(keep_seconds * 1e9)

    def changes(self, holdings: Sequence[GpuAllocation], since_ns: int) -> list[Change]:
        """What the records say happened that the table does not know yet, in order."""
        found = []
        if holdings:  # none at all: the folder could not be read just now
            self.closed &= {(holding.jobid, holding.restart) for holding in holdings}
        for holding in holdings:
            start, end = holding.start, holding.end
            entry = self.entries.get(holding.jobid)
            if start is None or (end and end.boot_ns + self._keep_ns < since_ns and not entry):
                continue  # long gone before this exporter ever ran
            if (holding.jobid, holding.restart) in self.closed:
                continue
            is_new = entry is None or not entry.has_record or holding.restart > entry.restart
            if is_new:
                found.append(Change(start.boot_ns, True, holding, holding.start_reading))
            # A requeued job has an ended record of its earlier run beside the open one.
            is_open = entry and entry.end_ns is None and entry.restart == holding.restart
            if end and (is_new or is_open):
                found.append(Change(end.boot_ns, False, holding, holding.end_reading))
        return sorted(found, key=lambda change: (change.at_ns, change.is_start))

    def apply(self, change: Change, at_ns: int) -> None:
        """Let the job come or go at `at_ns`."""
        holding = change.holding
        entry = self.entries.get(holding.jobid)
        if not change.is_start:
            if entry and entry.end_ns is None and entry.restart == holding.restart:
                entry.end_ns = max(at_ns, entry.start_ns)
                entry.end_time = holding.end.time_ns / 1e9 if holding.end else None
            return
        if entry and entry.end_ns is None and entry.restart < holding.restart:
            self.closed.add((entry.jobid, entry.restart))
        self.entries[holding.jobid] = Entry(
            jobid=holding.jobid,
            start_ns=at_ns,
            user=holding.user,
            account=holding.account,
            partition=holding.partition,
            uid=holding.uid,
            gpus=holding.gpus,
            cpus=float(holding.cpus or 0),
            profile=holding.profile,
            restart=holding.restart,
            start_time=holding.start.time_ns / 1e9 if holding.start else 0.0,
        )

    def close(self, entry: Entry, at_ns: int, time_s: float) -> None:
        """The job is over although nobody said so."""
        entry.end_ns, entry.end_time = max(at_ns, entry.start_ns), time_s
        if entry.has_record:
            self.closed.add((entry.jobid, entry.restart))

    def see_uses(self, uses: Mapping[int, JobUse], at_ns: int, time_s: float) -> list[int]:
        """Take processors and memory from the cgroups, and jobs that have no record.

        Returned are jobs with a record that are over because their cgroup has stayed away.
        """
        for jobid, use in uses.items():
            is_empty = use.processes == 0  # a folder that was left behind
            if not is_empty:
                self._reopen(jobid)
            entry = self.entries.get(jobid)
            if entry is None and is_empty:
                continue
            if entry is None:
                entry = Entry(jobid, at_ns, has_record=False, start_time=time_s)
                self.entries[jobid] = entry
            entry.cpus = entry.cpus or float(use.cpus or 0)
            entry.memory_bytes = float(use.memory_limit_bytes or use.memory_bytes or 0)
        lost = []
        for entry in self.live():
            use_now = uses.get(entry.jobid)
            if use_now and (use_now.processes != 0 or not entry.has_record):
                entry.is_seen, entry.away_ns = True, None
            elif not entry.has_record:
                self.close(entry, at_ns, time_s)
            elif entry.is_seen and entry.away_ns is None:
                entry.away_ns = at_ns
            elif entry.away_ns is not None and at_ns - entry.away_ns > _AWAY_NS:
                self.close(entry, at_ns, time_s)
                lost.append(entry.jobid)
        return lost

    def _reopen(self, jobid: int) -> None:
        """The job was taken to be over, and its cgroup is back: its next step has begun."""
        entry = self.entries.get(jobid)
        back = {pair for pair in self.closed if pair[0] == jobid}
        if entry and (jobid, entry.restart) in back:
            entry.end_ns = entry.end_time = entry.away_ns = None
            self.closed.discard((jobid, entry.restart))
        elif entry is None and back:
            self.closed.discard(max(back))

    def expired(self, at_ns: int) -> list[int]:
        """Jobs whose series end now."""
        return [
            jobid
            for jobid, entry in self.entries.items()
            if entry.end_ns is not None and at_ns - entry.end_ns > self._keep_ns
        ]

    def live(self) -> list[Entry]:
        """Jobs that are here."""
        return [entry for entry in self.entries.values() if entry.end_ns is None]

    def save(self) -> list[dict[str, Any]]:
        return [vars(entry) for entry in self.entries.values()]

    def restore(
        self, saved: Iterable[Mapping[str, Any]], closed: Iterable[Sequence[int]] = ()
    ) -> None:
        self.closed = {(jobid, restart) for jobid, restart in closed}
        for row in saved:
            entry = Entry(**{**row, "gpus": tuple(row["gpus"])})
            self.entries[entry.jobid] = entry


def add_samples(
    out: Samples, node: str, table: JobTable, slots: Sequence[GpuSlot], gpus: Sequence[GpuReading]
) -> None:
    """Who is here, and who holds what."""
    index_of = {gpu.uuid: str(gpu.index) for gpu in gpus}
    for entry in table.entries.values():
        key = (str(entry.jobid), node)
        out.add("carme_job_info", (*key, entry.user, entry.account, entry.partition), 1)
        out.add("carme_job_start_timestamp_seconds", key, round(entry.start_time, 3))
        if entry.end_time is not None:
            out.add("carme_job_end_timestamp_seconds", key, round(entry.end_time, 3))
        out.add("carme_job_cpus", key, entry.cpus or None)
        if entry.end_ns is None:
            for index in entry.gpus:
                if index < len(slots):
                    slot = slots[index]
                    out.add("carme_job_gpu_held", (*key, index_of.get(slot.gpu, ""), slot.name), 1)
