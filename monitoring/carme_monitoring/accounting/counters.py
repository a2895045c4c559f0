"""Counters besides energy (waste, traffic, emissions, cost) of each job, user and account."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from carme_monitoring.energy.shares import GpuSlot, JobPresence
from carme_monitoring.json_keys import TripleKey, TupleKey
from carme_monitoring.metrics import Samples
from carme_monitoring.sampler import GpuActivity

UJ_PER_KWH = 3.6e12
_MAX_FACTOR = 100_000.0


@dataclass(frozen=True)
class EnergyFactors:
    """Grams of CO2 equivalent and money per kWh now; None is not configured."""

    grams_per_kwh: float | None = None
    price_per_kwh: float | None = None

    def updated_from(self, file: Path | None) -> "EnergyFactors":
        """These, replaced by the plausible values of `file`, which a site may keep current."""
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file else {}
        except (OSError, ValueError):
            return self
        values = content if isinstance(content, dict) else {}
        plausible = {
            name: float(value)
            for name in ("grams_per_kwh", "price_per_kwh")
            if isinstance(value := values.get(name), int | float)
            and not isinstance(value, bool)
            and 0 <= value < _MAX_FACTOR
        }
        return replace(self, **plausible)


NODE_FIGURES = (
    "gpu_utilised_seconds",
    "gpu_idle_joules",
    "cpu_asked_seconds",
    "cpu_idle_seconds",
)
"""Figures that the node exports as a sum over its jobs."""
USE_FIGURES = ("gpu_held_seconds", "gpu_idle_seconds", *NODE_FIGURES)


@dataclass
class JobTotals:
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

    def figures(self, factors: EnergyFactors, currency: str) -> dict[tuple[str, ...], float]:
        """The figures that are also counted for users, by name and further labels."""
        figures: dict[tuple[str, ...], float] = {
            (name,): getattr(self, name) for name in USE_FIGURES
        }
        if factors.grams_per_kwh is not None:
            figures["emissions_grams",] = self.emissions_grams
        if factors.price_per_kwh is not None:
            figures["cost", currency] = self.cost
        return figures


@dataclass
class JobCounters:
    """Every job's figures, and the node's, which live longer than jobs."""

    jobs: dict[int, JobTotals] = field(default_factory=dict)
    node_gpu_held_seconds: float = 0.0
    node_gpu_idle_seconds: float = 0.0
    consumers: dict[str, JobTotals] = field(default_factory=dict)
    """Emissions and cost of all energy of the node, by consumer."""

    def of(self, jobid: int) -> JobTotals:
        """The job's counter, created if there is none."""
        return self.jobs.setdefault(jobid, JobTotals())

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
            present_seconds = job.overlap(*span) * seconds
            if present_seconds <= 0:
                continue
            counter = self.of(job.jobid)
            for slot in (by_name[name] for name in job.slots if name in by_name):
                held_seconds = present_seconds * slot.share
                counter.gpu_held_seconds += held_seconds
                self.node_gpu_held_seconds += held_seconds
                gpu_activity = activity.get(slot.gpu)
                if gpu_activity and slot.share == 1:  # NVML has no utilisation of a slice
                    idle_seconds = held_seconds * gpu_activity.idle_part
                    counter.gpu_idle_seconds += idle_seconds
                    self.node_gpu_idle_seconds += idle_seconds
                    counter.gpu_utilised_seconds += held_seconds * (gpu_activity.utilisation or 0.0)
                    counter.gpu_idle_joules += (
                        gpu_activity.idle_mj / 1000 * min(1.0, present_seconds / seconds)
                    )
            cpu_asked_seconds = job.cpus * present_seconds
            counter.cpu_asked_seconds += cpu_asked_seconds
            cpu_idle_seconds = cpu_asked_seconds - cpu_seconds.get(job.jobid, 0.0)
            counter.cpu_idle_seconds += max(0.0, cpu_idle_seconds)

    def count_traffic(
        self,
        jobs: Sequence[JobPresence],
        cpu_seconds: Mapping[int, float],
        received: int,
        sent: int,
        span: tuple[int, int],
    ) -> None:
        """Divide the node's traffic of the interval among its jobs, by processor time."""
        overlaps = {job.jobid: overlap for job in jobs if (overlap := job.overlap(*span)) > 0}
        if not overlaps:
            return
        is_alone = len(overlaps) == 1 and next(iter(overlaps.values())) == 1
        weights = {jobid: cpu_seconds.get(jobid, 0.0) for jobid in overlaps}
        if not any(weights.values()):
            weights = overlaps
        total = sum(weights.values())
        method = "exclusive" if is_alone else "share"
        for jobid, weight in weights.items():
            network = self.of(jobid).network
            for direction, amount in (("receive", received), ("send", sent)):
                key = f"{method}/{direction}"
                network[key] = network.get(key, 0) + round(amount * weight / total)

    def count_costs(
        self, job_uj: Mapping[int, int], consumer_uj: Mapping[str, int], factors: EnergyFactors
    ) -> None:
        """Turn what was charged to jobs and to the node's consumers since the last call into
        grams and money."""
        for jobid, uj in job_uj.items():
            _count_cost(self.of(jobid), uj, factors)
        for consumer, uj in consumer_uj.items():
            _count_cost(self.consumers.setdefault(consumer, JobTotals()), uj, factors)

    def forget(self, jobid: int) -> None:
        """Forget a job whose series have ended."""
        self.jobs.pop(jobid, None)

    def after_reboot(self) -> None:
        """Forget the jobs, which are gone."""
        self.jobs.clear()


def _count_cost(counter: JobTotals, uj: int, factors: EnergyFactors) -> None:
    added_uj, counter.costed_uj = max(0, uj - counter.costed_uj), uj
    counter.emissions_grams += added_uj / UJ_PER_KWH * (factors.grams_per_kwh or 0.0)
    counter.cost += added_uj / UJ_PER_KWH * (factors.price_per_kwh or 0.0)


Owner = TripleKey
"""User, account, partition."""
Figure = TupleKey
"""The name of what is counted, and label values beyond the owner's."""
JobFigures = tuple[int, Owner, Mapping[Figure, float]]
"""A job, its owner and its figures."""
_FORGET_NS = 24 * 3600 * 10**9
"""An owner's series end after a day without a job here, so that their number does not only grow."""


@dataclass
class OwnerTotal:
    """One figure of an owner, and when it first and last changed."""

    value: float
    since_ns: int
    last_ns: int


@dataclass
class UserCounters:
    """Totals for each owner of jobs; `count` increases them."""

    hold_seconds: Annotated[float, Field(exclude=True)] = 30.0
    """A new series is zero for so long: Prometheus must have read it once before it grows."""
    totals: dict[Owner, dict[Figure, OwnerTotal]] = field(default_factory=dict)
    counted: dict[int, dict[Figure, float]] = field(default_factory=dict)
    """A job's figures as they were when last counted."""
    node: dict[Figure, float] = field(default_factory=dict)
    """The same for all jobs of the node together."""

    def count(self, jobs: Iterable[JobFigures], at_ns: int) -> None:
        """Add what the figures of each job grew by since the last call."""
        for jobid, owner, figures in jobs:
            counted = self.counted.setdefault(jobid, {})
            totals = self.totals.setdefault(owner, {})
            for figure, value in figures.items():
                gained = max(0.0, value - counted.get(figure, 0.0))
                counted[figure] = value
                total = totals.setdefault(figure, OwnerTotal(0.0, at_ns, at_ns))
                total.value += gained
                total.last_ns = at_ns
                self.node[figure] = self.node.get(figure, 0.0) + gained
        for owner in [
            owner
            for owner, totals in self.totals.items()
            if all(at_ns - total.last_ns > _FORGET_NS for total in totals.values())
        ]:
            del self.totals[owner]

    def forget(self, jobid: int) -> None:
        """Forget a job whose series have ended; its owner's totals keep what it used."""
        self.counted.pop(jobid, None)

    def add_samples(self, out: Samples, at_ns: int) -> None:
        """`carme_owner_…` for every owner."""
        hold_ns = round(self.hold_seconds * 1e9)
        for owner, totals in self.totals.items():
            for (name, *labels), total in totals.items():
                value = total.value if at_ns - total.since_ns >= hold_ns else 0.0
                out.add(f"carme_owner_{name}_total", (*owner, *labels), round(value, 6))

    def after_reboot(self) -> None:
        """Forget the jobs, which are gone. The clock begins again; all series were read before."""
        self.counted.clear()
        for totals in self.totals.values():
            for total in totals.values():
                total.since_ns, total.last_ns = -round(self.hold_seconds * 1e9), 0
