"""The policy of dividing a node's energy of an interval among its consumers.

- A GPU's energy goes to the job that holds it, for the time it held it; several jobs on one GPU
  share it by their SM time, MIG slices by their size. Other time is `unallocated`.
- CPU energy is divided by processor time. A processor that a job holds and leaves idle counts
  IDLE_WEIGHT of a busy one, to that job; one that nobody holds counts as much, to `unallocated`;
  what runs outside jobs is `system`.
- DRAM energy is divided by memory held: by a job, by the system, or free (`unallocated`).
- The rest of the meter (fans, losses, idle) is divided by how much of the node a job holds: the
  largest of its shares of GPUs, processors and memory, because that is what it keeps from others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carme_monitoring.energy.ledger import SYSTEM, UNALLOCATED, Consumer

IDLE_WEIGHT = 0.25
"""An idle core in a shallow sleep draws about a quarter of a busy one."""


@dataclass(frozen=True)
class JobPresence:
    """A job on the node: when, and what it holds."""

    jobid: int
    start_ns: int
    end_ns: int | None = None
    slots: tuple[str, ...] = ()
    """Names of the GPUs or MIG slices it holds."""
    cpus: float = 0.0
    memory_bytes: float = 0.0

    def overlap(self, from_ns: int, to_ns: int) -> float:
        """The part of the interval in which the job was here, 0 to 1."""
        end = self.end_ns if self.end_ns is not None else to_ns
        if to_ns <= from_ns:
            return 1.0 if self.start_ns <= to_ns <= end else 0.0
        common_ns = min(end, to_ns) - max(self.start_ns, from_ns)
        return max(0, common_ns) / (to_ns - from_ns)


@dataclass(frozen=True)
class GpuSlot:
    """The unit that Slurm allocates: a whole GPU, or a MIG slice."""

    name: str
    gpu: str
    share: float = 1.0


@dataclass(frozen=True)
class NodeActivity:
    """Use of the node's processors, memory and GPUs in an interval."""

    cpus: int = 0
    memory_bytes: float = 0.0
    job_cpu_seconds: Mapping[int, float] = field(default_factory=dict)
    busy_seconds: float | None = None
    """Processor time of everything on the node, jobs included; None where it is not known."""
    system_memory_bytes: float = 0.0
    sm_share: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """(slot, job) → SM time, for slots that several jobs use."""
    is_estimate: bool = False
    """Divided by time from a longer interval, because nothing was read at its ends."""

    def scaled(self, fraction: float) -> "NodeActivity":
        """A part of the interval, in proportion.

        Processor time outside of the present jobs may be that of a job that has ended, so none
        of it is charged to the system.
        """
        if fraction == 1:
            return self
        used = {jobid: spent * fraction for jobid, spent in self.job_cpu_seconds.items()}
        return replace(self, job_cpu_seconds=used, busy_seconds=None, is_estimate=True)


Weights = dict[Consumer, float]


def gpu_weights(
    gpu: str,
    slots: Sequence[GpuSlot],
    jobs: Sequence[JobPresence],
    now: NodeActivity,
    span: tuple[int, int],
) -> tuple[Weights, bool]:
    """The consumers of a GPU's energy in `span`, and whether it had to be divided by time."""
    weights: Weights = {}
    is_estimate = False
    sliced = 0.0
    for slot in (slot for slot in slots if slot.gpu == gpu):
        sliced += slot.share
        held = {job: job.overlap(*span) for job in jobs if slot.name in job.slots}
        held = {job: overlap for job, overlap in held.items() if overlap > 0}
        covered = _union(held, span) if held else 0.0
        is_estimate = (
            is_estimate or 0 < covered < 1 or any(overlap < 1 for overlap in held.values())
        )
        job_weights = {
            job: overlap * now.sm_share.get((slot.name, job.jobid), 0.0)
            for job, overlap in held.items()
        }
        if not any(job_weights.values()):
            job_weights = held
        total = sum(job_weights.values())
        for job, weight in job_weights.items():
            _add(weights, job.jobid, slot.share * covered * weight / total)
        _add(weights, UNALLOCATED, slot.share * (1 - covered))
    _add(weights, UNALLOCATED, max(0.0, 1 - sliced))
    return weights, is_estimate


def cpu_weights(jobs: Iterable[JobPresence], now: NodeActivity, span: tuple[int, int]) -> Weights:
    """The consumers of the processors' energy."""
    seconds = (span[1] - span[0]) / 1e9
    weights: Weights = {}
    used = idle_held = 0.0
    for job in jobs:
        overlap = job.overlap(*span)
        busy = max(0.0, now.job_cpu_seconds.get(job.jobid, 0.0))
        if not overlap and not busy:
            continue
        idle = max(0.0, job.cpus * overlap * seconds - busy)
        _add(weights, job.jobid, busy + IDLE_WEIGHT * idle)
        used, idle_held = used + busy, idle_held + idle
    capacity = now.cpus * seconds
    if now.busy_seconds is not None:
        system = max(0.0, now.busy_seconds - used)
        _add(weights, SYSTEM, system)
        used += system
    _add(weights, UNALLOCATED, IDLE_WEIGHT * max(0.0, capacity - used - idle_held))
    return weights


def memory_weights(
    jobs: Iterable[JobPresence], now: NodeActivity, span: tuple[int, int]
) -> Weights:
    """The consumers of the memory's energy."""
    weights: Weights = {job.jobid: job.memory_bytes * job.overlap(*span) for job in jobs}
    held = sum(weights.values())
    _add(weights, SYSTEM, min(now.system_memory_bytes, max(0.0, now.memory_bytes - held)))
    _add(weights, UNALLOCATED, now.memory_bytes - sum(weights.values()))
    return weights


def rest_weights(
    jobs: Iterable[JobPresence], slots: Sequence[GpuSlot], now: NodeActivity, span: tuple[int, int]
) -> Weights:
    """The consumers of the rest of the meter: by the largest of a job's shares of the node."""
    gpus = len({slot.gpu for slot in slots})
    share_of = {slot.name: slot.share / gpus for slot in slots}
    weights: Weights = {}
    for job in jobs:
        largest = max(
            sum(share_of.get(name, 0.0) for name in job.slots),
            job.cpus / now.cpus if now.cpus else 0.0,
            job.memory_bytes / now.memory_bytes if now.memory_bytes else 0.0,
        )
        _add(weights, job.jobid, min(1.0, largest) * job.overlap(*span))
    _add(weights, UNALLOCATED, 1 - sum(weights.values()))
    return weights


def _add(weights: Weights, consumer: Consumer, weight: float) -> None:
    if weight > 0:
        weights[consumer] = weights.get(consumer, 0.0) + weight


def _union(jobs: Mapping[JobPresence, float], span: tuple[int, int]) -> float:
    """The part of the interval in which at least one of the jobs was there."""
    start, stop = span
    if stop <= start:
        return 1.0
    covered, reached = 0, start
    for job in sorted(jobs, key=lambda job: job.start_ns):
        begin = max(job.start_ns, reached)
        end = min(job.end_ns if job.end_ns is not None else stop, stop)
        if end > begin:
            covered, reached = covered + end - begin, end
    return covered / (stop - start)
