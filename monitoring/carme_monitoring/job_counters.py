"""What accumulates per job besides energy: waste, traffic, emissions, cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from carme_monitoring.emission_factors import UJ_PER_KWH, EmissionFactors
from carme_monitoring.energy.shares import GpuSlot, JobPresence
from carme_monitoring.sampler import GpuActivity


@dataclass
class JobCounter:
    """One job's accumulated figures."""

    gpu_held_seconds: float = 0.0
    gpu_idle_seconds: float = 0.0
    gpu_utilised_seconds: float = 0.0
    gpu_idle_joules: float = 0.0
    cpu_asked_seconds: float = 0.0
    cpu_idle_seconds: float = 0.0
    emissions_grams: float = 0.0
    cost: float = 0.0
    costed_uj: int = 0
    """Energy for which emissions and cost were counted already."""
    network: dict[str, int] = field(default_factory=dict)
    """`method/direction` → bytes."""


class JobCounters:
    """Every job's figures, and the node's, which live longer than jobs."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobCounter] = {}
        self.node_gpu_held_seconds = 0.0
        self.node_gpu_idle_seconds = 0.0
        self.consumers: dict[str, JobCounter] = {}
        """Emissions and cost of all energy of the node, by who used it."""

    def of(self, jobid: int) -> JobCounter:
        """The job's figures, new when there are none."""
        return self.jobs.setdefault(jobid, JobCounter())

    def waste(
        self,
        jobs: Sequence[JobPresence],
        slots: Sequence[GpuSlot],
        seen: Mapping[str, GpuActivity],
        cpu_seconds: Mapping[int, float],
        span: tuple[int, int],
    ) -> None:
        """Count held and idle GPU and processor time of the interval."""
        seconds = (span[1] - span[0]) / 1e9
        by_name = {slot.name: slot for slot in slots}
        for job in jobs:
            here = job.overlap(*span) * seconds
            if here <= 0:
                continue
            tally = self.of(job.jobid)
            for slot in (by_name[name] for name in job.slots if name in by_name):
                held = here * slot.share
                tally.gpu_held_seconds += held
                self.node_gpu_held_seconds += held
                look = seen.get(slot.gpu)
                if look and slot.share == 1:  # a slice's own utilisation is not to be had
                    idle = held * look.idle_part
                    tally.gpu_idle_seconds += idle
                    self.node_gpu_idle_seconds += idle
                    tally.gpu_utilised_seconds += held * (look.utilisation or 0.0)
                    tally.gpu_idle_joules += look.idle_mj / 1000 * min(1.0, here / seconds)
            asked = job.cpus * here
            tally.cpu_asked_seconds += asked
            tally.cpu_idle_seconds += max(0.0, asked - cpu_seconds.get(job.jobid, 0.0))

    def traffic(
        self,
        jobs: Sequence[JobPresence],
        cpu_seconds: Mapping[int, float],
        received: int,
        sent: int,
        span: tuple[int, int],
    ) -> None:
        """Give the node's traffic of the interval to its jobs."""
        here = {job.jobid: job.overlap(*span) for job in jobs}
        here = {jobid: part for jobid, part in here.items() if part > 0}
        if not here:
            return
        is_alone = len(here) == 1 and next(iter(here.values())) == 1
        weights = {jobid: cpu_seconds.get(jobid, 0.0) for jobid in here}
        if not any(weights.values()):
            weights = here
        total = sum(weights.values())
        method = "exclusive" if is_alone else "share"
        for jobid, weight in weights.items():
            network = self.of(jobid).network
            for direction, amount in (("receive", received), ("send", sent)):
                key = f"{method}/{direction}"
                network[key] = network.get(key, 0) + round(amount * weight / total)

    def costs(self, energy_uj: Mapping[int, int], factors: EmissionFactors) -> None:
        """Turn what jobs were charged since the last call into grams and money."""
        for jobid, uj in energy_uj.items():
            _cost(self.of(jobid), uj, factors)

    def consumer_costs(self, energy_uj: Mapping[str, int], factors: EmissionFactors) -> None:
        """The same for the node's consumers: jobs, unallocated, system."""
        for consumer, uj in energy_uj.items():
            _cost(self.consumers.setdefault(consumer, JobCounter()), uj, factors)

    def forget(self, jobid: int) -> None:
        """The job's series have ended."""
        self.jobs.pop(jobid, None)

    def save(self) -> dict[str, Any]:
        return {
            "jobs": {str(jobid): asdict(tally) for jobid, tally in self.jobs.items()},
            "held": self.node_gpu_held_seconds,
            "idle": self.node_gpu_idle_seconds,
            "consumers": {name: asdict(tally) for name, tally in self.consumers.items()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.jobs = {int(jobid): JobCounter(**row) for jobid, row in saved["jobs"].items()}
        self.node_gpu_held_seconds, self.node_gpu_idle_seconds = saved["held"], saved["idle"]
        self.consumers = {name: JobCounter(**row) for name, row in saved["consumers"].items()}


def _cost(tally: JobCounter, uj: int, factors: EmissionFactors) -> None:
    new, tally.costed_uj = max(0, uj - tally.costed_uj), uj
    tally.emissions_grams += new / UJ_PER_KWH * (factors.grams_per_kwh or 0.0)
    tally.cost += new / UJ_PER_KWH * (factors.price_per_kwh or 0.0)
