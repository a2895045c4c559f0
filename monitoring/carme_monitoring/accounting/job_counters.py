"""Counters of each job besides energy: waste, traffic, emissions, cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from carme_monitoring.accounting.emission_factors import UJ_PER_KWH, EmissionFactors
from carme_monitoring.energy.shares import GpuSlot, JobPresence
from carme_monitoring.sampler import GpuActivity

NODE_FIGURES = (
    "gpu_utilised_seconds",
    "gpu_idle_joules",
    "cpu_asked_seconds",
    "cpu_idle_seconds",
)
"""What the node publishes from the sum over its jobs."""
USE_FIGURES = ("gpu_held_seconds", "gpu_idle_seconds", *NODE_FIGURES)


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

    def figures(self, factors: EmissionFactors, currency: str) -> dict[tuple[str, ...], float]:
        """What users' counters have, too: by name and further labels."""
        figures: dict[tuple[str, ...], float] = {
            (name,): getattr(self, name) for name in USE_FIGURES
        }
        if factors.grams_per_kwh is not None:
            figures["emissions_grams",] = self.emissions_grams
        if factors.price_per_kwh is not None:
            figures["cost", currency] = self.cost
        return figures


class JobCounters:
    """Every job's figures, and the node's, which live longer than jobs."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobCounter] = {}
        self.node_gpu_held_seconds = 0.0
        self.node_gpu_idle_seconds = 0.0
        self.consumers: dict[str, JobCounter] = {}
        """Emissions and cost of all energy of the node, by consumer."""

    def of(self, jobid: int) -> JobCounter:
        """The job's figures, new when there are none."""
        return self.jobs.setdefault(jobid, JobCounter())

    def count_use(
        self,
        jobs: Sequence[JobPresence],
        slots: Sequence[GpuSlot],
        activity: Mapping[str, GpuActivity],
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
            counter = self.of(job.jobid)
            for slot in (by_name[name] for name in job.slots if name in by_name):
                held = here * slot.share
                counter.gpu_held_seconds += held
                self.node_gpu_held_seconds += held
                seen = activity.get(slot.gpu)
                if seen and slot.share == 1:  # a slice's own utilisation is not to be had
                    idle = held * seen.idle_part
                    counter.gpu_idle_seconds += idle
                    self.node_gpu_idle_seconds += idle
                    counter.gpu_utilised_seconds += held * (seen.utilisation or 0.0)
                    counter.gpu_idle_joules += seen.idle_mj / 1000 * min(1.0, here / seconds)
            asked = job.cpus * here
            counter.cpu_asked_seconds += asked
            counter.cpu_idle_seconds += max(0.0, asked - cpu_seconds.get(job.jobid, 0.0))

    def count_traffic(
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

    def count_costs(
        self, job_uj: Mapping[int, int], consumer_uj: Mapping[str, int], factors: EmissionFactors
    ) -> None:
        """Turn what was charged to jobs and to the node's consumers since the last call into
        grams and money."""
        for jobid, uj in job_uj.items():
            _count_cost(self.of(jobid), uj, factors)
        for consumer, uj in consumer_uj.items():
            _count_cost(self.consumers.setdefault(consumer, JobCounter()), uj, factors)

    def forget(self, jobid: int) -> None:
        """The job's series have ended."""
        self.jobs.pop(jobid, None)

    def save(self) -> dict[str, Any]:
        """What the state file keeps."""
        return {
            "jobs": {str(jobid): asdict(counter) for jobid, counter in self.jobs.items()},
            "held": self.node_gpu_held_seconds,
            "idle": self.node_gpu_idle_seconds,
            "consumers": {name: asdict(counter) for name, counter in self.consumers.items()},
        }

    def restore(self, saved: Mapping[str, Any], is_same_boot: bool) -> None:
        """Take up what `save` gave; after a reboot the jobs are gone."""
        if is_same_boot:
            self.jobs = {int(jobid): JobCounter(**row) for jobid, row in saved["jobs"].items()}
        self.node_gpu_held_seconds, self.node_gpu_idle_seconds = saved["held"], saved["idle"]
        self.consumers = {name: JobCounter(**row) for name, row in saved["consumers"].items()}


def _count_cost(counter: JobCounter, uj: int, factors: EmissionFactors) -> None:
    new, counter.costed_uj = max(0, uj - counter.costed_uj), uj
    counter.emissions_grams += new / UJ_PER_KWH * (factors.grams_per_kwh or 0.0)
    counter.cost += new / UJ_PER_KWH * (factors.price_per_kwh or 0.0)
