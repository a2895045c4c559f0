"""Charges energy readings to jobs: sources, shares and ledger together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Literal

from pydantic import Field

from carme_monitoring.energy.ledger import REST, Ledger
from carme_monitoring.energy.shares import (
    GpuSlot,
    JobPresence,
    NodeActivity,
    cpu_weights,
    gpu_weights,
    memory_weights,
    rest_weights,
)

GainOutcome = Literal["first", "counted", "wrapped", "reset", "rejected", "estimated", "same"]
_MAX_GAP_NS = 3600 * 10**9
"""In a longer gap between two readings nothing is estimated."""
_MAX_WRAP_WATTS = 750.0
"""No processor package draws more on average; the largest are specified for 500 W. The limit for
rejecting a reading is higher: after 20 s it allows for a whole range."""
_LOAD_CHANGE_NS = 30 * 10**9
"""In a gap this short the load may have changed at once; in a longer one it rarely did."""
_WRAP_FACTOR = 2.0
"""In a longer gap, a counter that wrapped hardly gained more than this times its usual gain."""
_USUAL_WATTS = 100.0
"""The power of a counter before it was measured."""
_MIN_RATE_NS = 10**9
"""The power of a shorter time is too rough to be the usual one."""
_SLACK_UJ = 5_000_000
"""What a counter may show beyond its limit: counters advance in steps."""
_MAX_REJECTS = 3
"""After so many rejected readings the counter starts again from the last one. A glitch is
shorter, and the reading after it counts for the whole time."""


@dataclass(frozen=True)
class EnergyGain:
    """What a source gained between two readings."""

    uj: int
    from_ns: int
    to_ns: int
    outcome: GainOutcome


@dataclass
class CounterSource:
    """An energy counter. It may wrap at a known range or begin again from zero."""

    max_watts: float
    range_uj: int | None = None
    value_uj: int = 0
    at_ns: int = -1
    rejects: int = 0
    watts: float | None = None
    """Mean power between the last two readings."""

    def advance(self, value_uj: int, at_ns: int) -> EnergyGain:
        """The gain since the last reading.

        A counter that went down has wrapped if that is plausible; otherwise it was reset to zero. A
        gain above `max_watts` is rejected and counts nothing. Whole turns in a long gap cannot be
        read and are not counted.
        """
        if self.at_ns < 0:
            self.value_uj, self.at_ns = value_uj, at_ns
            return EnergyGain(0, at_ns, at_ns, "first")
        if at_ns <= self.at_ns:
            return EnergyGain(0, self.at_ns, self.at_ns, "same")
        from_ns, gained = self.at_ns, value_uj - self.value_uj
        outcome: GainOutcome = "counted"
        if gained < 0:
            rest_uj = self._gain_before_wrap(value_uj, at_ns)
            outcome = "reset" if rest_uj is None else "wrapped"
            gained = value_uj + (rest_uj or 0)
        if value_uj < 0 or gained > self._most(at_ns, self.max_watts):
            self.rejects += 1
            if self.rejects >= _MAX_REJECTS and value_uj >= 0:  # it stays: begin again from here
                self.value_uj, self.at_ns, self.rejects = value_uj, at_ns, 0
            return EnergyGain(0, from_ns, from_ns, "rejected")
        self.value_uj, self.at_ns, self.rejects = value_uj, at_ns, 0
        if outcome != "reset" and at_ns - from_ns >= _MIN_RATE_NS:
            self.watts = gained * 1000 / (at_ns - from_ns)
        return EnergyGain(gained, from_ns, at_ns, outcome)

    def _gain_before_wrap(self, value_uj: int, at_ns: int) -> int | None:
        """What a counter that went down gained up to its range; None if it was reset.

        A wrap and a reset differ by just this gain. In a short gap it counts if a processor can
        draw so much. In a longer one that explains nearly everything, so it counts only if the
        usual power explains it, too: a reset that is taken for a wrap then invents little, and a
        wrap that is taken for a reset, because the load has just begun, loses one interval.
        """
        if not self.range_uj or value_uj > self.range_uj:
            return None
        rest_uj = self.range_uj - self.value_uj
        usual_watts = _USUAL_WATTS if self.watts is None else self.watts
        if at_ns - self.at_ns <= _LOAD_CHANGE_NS:
            usual_watts = _MAX_WRAP_WATTS
        is_wrap = 0 <= rest_uj <= self._most(at_ns, _WRAP_FACTOR * usual_watts)
        most_uj = self._most(at_ns, min(self.max_watts, _MAX_WRAP_WATTS))
        return rest_uj if is_wrap and rest_uj + value_uj <= most_uj else None

    def _most(self, at_ns: int, watts: float) -> int:
        return round(watts * (at_ns - self.at_ns) / 1000) + _SLACK_UJ


@dataclass
class GaugeSource:
    """A power reading, integrated by the trapezoidal rule; gaps are marked as estimated."""

    max_watts: float
    max_step_ns: int
    """A longer time between readings is a gap."""
    watts: float = 0.0
    at_ns: int = -1

    def advance(self, watts: float, at_ns: int) -> EnergyGain:
        """The energy since the last reading."""
        if not 0 <= watts <= self.max_watts:
            return EnergyGain(0, self.at_ns, self.at_ns, "rejected")
        from_ns, last_watts = self.at_ns, self.watts
        if from_ns >= 0 and at_ns <= from_ns:
            return EnergyGain(0, from_ns, from_ns, "same")
        self.watts, self.at_ns = watts, at_ns
        if from_ns < 0 or at_ns - from_ns > _MAX_GAP_NS:
            return EnergyGain(0, at_ns, at_ns, "first")
        gained = round((last_watts + watts) / 2 * (at_ns - from_ns) / 1000)
        is_gap = at_ns - from_ns > self.max_step_ns
        return EnergyGain(gained, from_ns, at_ns, "estimated" if is_gap else "counted")


MAX_GPU_WATTS = 3000.0
MAX_PACKAGE_WATTS = 3000.0
MAX_NODE_WATTS = 50_000.0
_UNCERTAINTY = {"gpu": 0.05, "cpu": 0.05, "dram": 0.10, REST: 0.10}
"""NVIDIA gives ±5 % for its power readings; RAPL has been measured within a few percent of
instruments, its DRAM part within ten; board meters and their division are no better."""
_ESTIMATE_UNCERTAINTY = 0.3
"""Uncertainty of energy split by time because no counter was read when the GPU changed hands."""
_COUNTER_STEP_SECONDS = 0.1
"""GPU counters advance every 20 to 100 ms: start and end are each off by up to this."""


@dataclass(frozen=True)
class RaplZone:
    """A RAPL counter."""

    uj: int
    range_uj: int | None
    component: str
    """`cpu` or `dram`."""
    title: str = ""
    """The zone's name, for people."""
    total_uj: int = 0
    """Energy charged from it since the exporter first ran after the boot of the node."""


@dataclass(frozen=True)
class EnergyReading:
    """What was read at one moment; sources that did not answer are not in it."""

    at_ns: int
    gpu_mj: Mapping[str, int] = field(default_factory=dict)
    gpu_watts: Mapping[str, float] = field(default_factory=dict)
    """For GPUs without a counter."""
    zones: Mapping[str, RaplZone] = field(default_factory=dict)
    meter_watts: float | None = None
    meter_uj: int | None = None


@dataclass
class EnergyAccountant:
    """Charges the gain of every source to the jobs of that time."""

    max_step_seconds: Annotated[float, Field(exclude=True)] = 60.0
    """A longer time between two readings of a power is a gap."""
    ledger: Ledger = field(default_factory=Ledger)
    counters: dict[str, CounterSource] = field(default_factory=dict)
    """Those that were ever read: `gpu:GPU-…`, `rapl:intel-rapl:0`, `meter`."""
    gauges: dict[str, GaugeSource] = field(default_factory=dict)
    """Powers of what has no counter: `gpu-gauge:GPU-…`, `meter-gauge`."""
    held_seconds: dict[int, float] = field(default_factory=dict)
    """Time for which a job's energy was counted, for its uncertainty."""
    zone_totals: dict[str, int] = field(default_factory=dict)
    """µJ charged of each RAPL zone."""
    resets: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)

    def settle(
        self,
        reading: EnergyReading,
        jobs: Sequence[JobPresence],
        slots: Sequence[GpuSlot],
        now: NodeActivity,
    ) -> None:
        """Charge what every source gained since it was last read."""
        for gpu, mj in reading.gpu_mj.items():
            gauge = self.gauges.pop(f"gpu-gauge:{gpu}", None)
            if gauge and f"gpu:{gpu}" not in self.counters:
                # The counter counts from its first reading; until then the power stays as it was.
                gain = gauge.advance(gauge.watts, reading.at_ns)
                self._charge_gpu(gpu, gain, jobs, slots, now)
            source = self._counter(f"gpu:{gpu}", MAX_GPU_WATTS, None)
            self._charge_gpu(gpu, source.advance(mj * 1000, reading.at_ns), jobs, slots, now)
        for gpu, watts in reading.gpu_watts.items():
            if f"gpu:{gpu}" in self.counters:
                continue  # its counter did not answer now, and includes this time when it does
            power = self._gauge(f"gpu-gauge:{gpu}", MAX_GPU_WATTS)
            self._charge_gpu(gpu, power.advance(watts, reading.at_ns), jobs, slots, now)
        for name, zone in reading.zones.items():
            source = self._counter(f"rapl:{name}", MAX_PACKAGE_WATTS, zone.range_uj)
            gain = self._note(f"rapl:{name}", source.advance(zone.uj, reading.at_ns))
            self.zone_totals[name] = self.zone_totals.get(name, 0) + gain.uj
            span = (gain.from_ns, gain.to_ns)
            divide = memory_weights if zone.component == "dram" else cpu_weights
            self.ledger.charge(zone.component, gain.uj, divide(jobs, now, span), now.is_estimate)
        self._settle_meter(reading, jobs, slots, now)

    def count_held(self, jobs: Sequence[JobPresence], span: tuple[int, int]) -> None:
        """Count the time in `span` in which each job was there."""
        for job in jobs:
            seconds = job.overlap(*span) * (span[1] - span[0]) / 1e9
            if seconds > 0:
                self.held_seconds[job.jobid] = self.held_seconds.get(job.jobid, 0.0) + seconds

    def forget(self, jobid: int) -> None:
        """Drop a job whose series have ended; the node's totals keep its energy."""
        self.ledger.forget(jobid)
        self.held_seconds.pop(jobid, None)

    def after_reboot(self) -> None:
        """Forget jobs and sources: counters begin again, and nobody read them meanwhile."""
        self.ledger.after_reboot()
        for by_name in (self.counters, self.gauges, self.zone_totals):
            by_name.clear()
        self.held_seconds.clear()

    def uncertainty(self, jobid: int) -> float:
        """Relative standard uncertainty of a job's energy."""
        uj_by_component = self.ledger.job(jobid)
        total = sum(uj_by_component.values())
        if not total:
            return 0.0
        variance = sum(
            (uj * _UNCERTAINTY.get(name, 0.1)) ** 2 for name, uj in uj_by_component.items()
        )
        variance += (self.ledger.estimated.get(jobid, 0) * _ESTIMATE_UNCERTAINTY) ** 2
        if seconds := self.held_seconds.get(jobid, 0.0):
            end_error = total * min(1.0, _COUNTER_STEP_SECONDS / seconds)
            variance += 2 * end_error**2 / 12  # evenly distributed within a step
        return sqrt(variance) / total

    def _charge_gpu(
        self,
        gpu: str,
        gain: EnergyGain,
        jobs: Sequence[JobPresence],
        slots: Sequence[GpuSlot],
        now: NodeActivity,
    ) -> None:
        self._note(f"gpu:{gpu}", gain)
        weights, divided = gpu_weights(gpu, slots, jobs, now, (gain.from_ns, gain.to_ns))
        self.ledger.charge("gpu", gain.uj, weights, divided or gain.outcome == "estimated")

    def _settle_meter(
        self,
        reading: EnergyReading,
        jobs: Sequence[JobPresence],
        slots: Sequence[GpuSlot],
        now: NodeActivity,
    ) -> None:
        if reading.meter_uj is not None:
            counter = self._counter("meter", MAX_NODE_WATTS, None)
            gain = counter.advance(reading.meter_uj, reading.at_ns)
        elif reading.meter_watts is not None:
            power = self._gauge("meter-gauge", MAX_NODE_WATTS)
            gain = power.advance(reading.meter_watts, reading.at_ns)
        else:
            # A missing gauge cannot catch up; a counter can when it is back.
            gauge = self.gauges.get("meter-gauge")
            if self.ledger.has_meter and gauge and reading.at_ns - gauge.at_ns > gauge.max_step_ns:
                del self.gauges["meter-gauge"]
                self.ledger.lose_meter()
            return
        self._note("meter", gain)
        if gain.outcome == "first":
            if self.ledger.has_meter:
                self.ledger.lose_meter()
            self.ledger.begin_meter()
        elif gain.outcome not in ("same", "rejected"):
            weights = rest_weights(jobs, slots, now, (gain.from_ns, gain.to_ns))
            self.ledger.meter(gain.uj, weights, gain.outcome == "estimated")

    def _note(self, name: str, gain: EnergyGain) -> EnergyGain:
        if gain.outcome == "reset":
            self.resets[name] = self.resets.get(name, 0) + 1
        elif gain.outcome == "rejected":
            self.rejected[name] = self.rejected.get(name, 0) + 1
        return gain

    def _counter(self, name: str, max_watts: float, range_uj: int | None) -> CounterSource:
        source = self.counters.setdefault(name, CounterSource(max_watts))
        source.range_uj = range_uj
        return source

    def _gauge(self, name: str, max_watts: float) -> GaugeSource:
        max_step_ns = round(self.max_step_seconds * 1e9)
        source = self.gauges.setdefault(name, GaugeSource(max_watts, max_step_ns))
        source.max_step_ns = max_step_ns
        return source
