"""The jobs on this node: from when to when, and the GPUs that each holds.

They come from the prolog's records; on a site without the prolog, from their cgroups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from carme.node.gpu_allocations import CounterReading, GpuAllocation
from carme_monitoring.collectors.jobs import JobUsage
from carme_monitoring.energy.shares import GpuSlot, JobPresence

_AWAY_NS = 300 * 10**9
"""A cgroup is removed before the epilog runs; when it is missing for longer, none ran."""


@dataclass
class NodeJob:
    """A job on this node."""

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
    """When its cgroup was first missing."""
    start_time: float = 0.0
    end_time: float | None = None

    def presence(self, slots: Sequence[GpuSlot]) -> JobPresence:
        """The job for the ledger."""
        held = tuple(slots[index].name for index in self.gpus if index < len(slots))
        return JobPresence(
            self.jobid, self.start_ns, self.end_ns, held, self.cpus, self.memory_bytes
        )


@dataclass(frozen=True)
class JobChange:
    """A job started or ended at `at_ns`; `reading` is what the hook read then, if it did."""

    at_ns: int
    is_start: bool
    allocation: GpuAllocation
    reading: CounterReading | None


@dataclass
class JobTable:
    """The node's jobs, including those that ended a while ago."""

    keep_seconds: Annotated[float, Field(exclude=True)] = 300
    """The series of a job end so long after it."""
    jobs: dict[int, NodeJob] = field(default_factory=dict)
    closed: set[tuple[int, int]] = field(default_factory=set)
    """(job, restart) that ended without an epilog: nothing closes their records."""

    def changes(self, allocations: Sequence[GpuAllocation], since_ns: int) -> list[JobChange]:
        """Starts and ends in the records that the table does not have yet, in order."""
        changes, keep_ns = [], round(self.keep_seconds * 1e9)
        if allocations:  # none at all: the folder could not be read just now
            self.closed &= {(allocation.jobid, allocation.restart) for allocation in allocations}
        for allocation in allocations:
            start, end = allocation.start, allocation.end
            job = self.jobs.get(allocation.jobid)
            if start is None or (end and end.boot_ns + keep_ns < since_ns and not job):
                continue  # long gone before this exporter ever ran
            if (allocation.jobid, allocation.restart) in self.closed:
                continue
            is_new = job is None or not job.has_record or allocation.restart > job.restart
            if is_new:
                changes.append(JobChange(start.boot_ns, True, allocation, allocation.start_reading))
            # A requeued job has an ended record of its earlier run beside the open one.
            is_open = job and job.end_ns is None and job.restart == allocation.restart
            if end and (is_new or is_open):
                changes.append(JobChange(end.boot_ns, False, allocation, allocation.end_reading))
        return sorted(changes, key=lambda change: (change.at_ns, change.is_start))

    def apply(self, change: JobChange, at_ns: int) -> None:
        """Start or end the job at `at_ns`."""
        allocation = change.allocation
        job = self.jobs.get(allocation.jobid)
        if not change.is_start:
            if job and job.end_ns is None and job.restart == allocation.restart:
                job.end_ns = max(at_ns, job.start_ns)
                job.end_time = allocation.end.time_ns / 1e9 if allocation.end else None
            return
        if job and job.end_ns is None and job.restart < allocation.restart:
            self.closed.add((job.jobid, job.restart))
        self.jobs[allocation.jobid] = NodeJob(
            jobid=allocation.jobid,
            start_ns=at_ns,
            user=allocation.user,
            account=allocation.account,
            partition=allocation.partition,
            uid=allocation.uid,
            gpus=allocation.gpus,
            cpus=float(allocation.cpus or 0),
            profile=allocation.profile,
            restart=allocation.restart,
            start_time=allocation.start.time_ns / 1e9 if allocation.start else 0.0,
        )

    def close(self, job: NodeJob, at_ns: int, time_s: float) -> None:
        """End a job whose epilog did not run."""
        job.end_ns, job.end_time = max(at_ns, job.start_ns), time_s
        if job.has_record:
            self.closed.add((job.jobid, job.restart))

    def update_uses(self, uses: Mapping[int, JobUsage], at_ns: int, time_s: float) -> list[int]:
        """Update processors and memory from the cgroups, and add jobs that have no record.

        Returns jobs with a record that are over because their cgroup has not come back.
        """
        for jobid, use in uses.items():
            is_empty = use.processes == 0  # a folder that was left behind
            if not is_empty:
                self._reopen(jobid)
            job = self.jobs.get(jobid)
            if job is None and is_empty:
                continue
            if job is None:
                job = NodeJob(jobid, at_ns, has_record=False, start_time=time_s)
                self.jobs[jobid] = job
            job.cpus = job.cpus or float(use.cpus or 0)
            job.memory_bytes = float(use.memory_limit_bytes or use.memory_bytes or 0)
        lost = []
        for job in self.running():
            current_use = uses.get(job.jobid)
            if current_use and (current_use.processes != 0 or not job.has_record):
                job.is_seen, job.away_ns = True, None
            elif not job.has_record:
                self.close(job, at_ns, time_s)
            elif job.is_seen and job.away_ns is None:
                job.away_ns = at_ns
            elif job.away_ns is not None and at_ns - job.away_ns > _AWAY_NS:
                self.close(job, at_ns, time_s)
                lost.append(job.jobid)
        return lost

    def _reopen(self, jobid: int) -> None:
        """Reopen a job that was closed because its cgroup was missing: its next step has begun."""
        job = self.jobs.get(jobid)
        closed_runs = {pair for pair in self.closed if pair[0] == jobid}
        if job and (jobid, job.restart) in closed_runs:
            job.end_ns = job.end_time = job.away_ns = None
            self.closed.discard((jobid, job.restart))
        elif job is None and closed_runs:
            self.closed.discard(max(closed_runs))

    def expired(self, at_ns: int) -> list[int]:
        """Jobs whose series end now."""
        keep_ns = round(self.keep_seconds * 1e9)
        return [
            jobid
            for jobid, job in self.jobs.items()
            if job.end_ns is not None and at_ns - job.end_ns > keep_ns
        ]

    def forget(self, jobid: int) -> None:
        """Drop a job whose series have ended."""
        self.jobs.pop(jobid, None)

    def after_reboot(self) -> None:
        """Forget all jobs."""
        self.jobs.clear()
        self.closed.clear()

    def running(self) -> list[NodeJob]:
        """Jobs that have not ended."""
        return [job for job in self.jobs.values() if job.end_ns is None]
