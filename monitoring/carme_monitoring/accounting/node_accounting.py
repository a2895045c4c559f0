"""One accounting step: what the collectors read is charged to the jobs of the node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from carme.config import ExporterSettings
from carme.node.gpu_allocations import GpuAllocation
from carme_monitoring.accounting.counters import EnergyFactors, JobFigures
from carme_monitoring.accounting.crosscheck import CrossCheck
from carme_monitoring.accounting.exporter_state import ExporterState
from carme_monitoring.accounting.job_table import JobChange
from carme_monitoring.collector import Readings
from carme_monitoring.collectors.gpu import (
    GpuActivityCollector,
    GpuCollector,
    GpuEnergyCollector,
    NodeGpus,
)
from carme_monitoring.collectors.host import HostCollector, HostReading
from carme_monitoring.collectors.jobs import AllocationCollector, CgroupCollector, JobUsage
from carme_monitoring.collectors.network import NetworkCollector
from carme_monitoring.collectors.power import PowerCollector, RaplCollector
from carme_monitoring.energy.accountant import EnergyReading, RaplZone
from carme_monitoring.energy.ledger import CONSUMERS
from carme_monitoring.energy.shares import GpuSlot, JobPresence, NodeActivity
from carme_monitoring.gpus import slots
from carme_monitoring.sampler import GpuActivity


class NodeAccounting:
    """The node's accounts. `state` is what a restart keeps; the rest is of the last readings."""

    def __init__(self, config: ExporterSettings, state: ExporterState) -> None:
        self.config, self.state = config, state
        self.crosscheck = CrossCheck()
        self.gpus = NodeGpus([], [])
        self.slots: list[GpuSlot] = []
        self.uses: dict[int, JobUsage] = {}
        self._sluids: dict[str, int] = {}
        """The jobs by the names that Slurm gives to their cgroups."""
        self.factors = EnergyFactors()
        self.meter_source = "none"
        """The source of the node's last power reading."""
        self._gpu_activity: dict[str, GpuActivity] = {}
        self.sm_share: dict[tuple[str, int], float] = {}
        """SM time of what runs on the GPUs, by slot and job."""

    def charge(self, readings: Readings, time_s: float, jobid: int | None = None) -> None:
        """Charge everything up to the moment at which the counters were read.

        `jobid` is the job whose prolog or epilog runs right now: it starts or ends after this
        charge. The readings are left as they were charged, for publishing.
        """
        at_ns, previous = readings.at_ns, self.state.previous
        if gpus := readings.of(GpuCollector):
            self.gpus, self.slots = gpus, slots(gpus.installed)
        records = readings.of(AllocationCollector)
        allocations = records.allocations if records else ()
        host, zones = readings.of(HostCollector), readings.of(RaplCollector) or {}
        self._take_uses(readings, allocations)
        changes, charged_ns = self._catch_up(allocations, jobid, at_ns, host, zones)
        cpu_seconds = self._cpu_seconds(at_ns)
        activity = self._activity(host, cpu_seconds)
        if charged_ns is not None:
            activity = activity.scaled(previous.fraction(charged_ns, at_ns, at_ns))
        self._charge_energy(self._energy_reading(readings, zones), activity)
        totals = self.state.energy.zone_totals
        readings.put(
            RaplCollector,
            {name: replace(zone, total_uj=totals[name]) for name, zone in zones.items()},
        )
        self._count(readings, cpu_seconds)
        for change in changes:
            self.state.table.apply(change, at_ns)
        if readings.of(CgroupCollector) is not None:  # unreadable cgroups do not end jobs
            for _ in self.state.table.update_uses(self.uses, at_ns, time_s):
                self.crosscheck.conflicts.add(("stale_record",))
        previous.remember(at_ns, self.uses, host, readings.of(NetworkCollector))
        for expired in self.state.table.expired(at_ns):
            self.state.forget(expired)

    def compare_records(self) -> None:
        """Compare the GPU allocation records with what runs on the GPUs."""
        self.sm_share = self.crosscheck.check(
            self.state.table, self.gpus, self.slots, self.uses, self._sluids
        )

    def take_gpu_activity(self) -> dict[str, GpuActivity]:
        """Activity of each GPU since the last call."""
        activity, self._gpu_activity = self._gpu_activity, {}
        return activity

    def gpus_of_profiled_jobs(self) -> dict[int, list[str]]:
        """The jobs whose bursts are measured, and the GPUs that each holds."""
        mode = self.config.bursts
        return {
            job.jobid: [self.slots[i].gpu for i in job.gpus if i < len(self.slots)]
            for job in self.state.table.running()
            if mode == "always" or (job.profile and mode == "asked")
        }

    def _take_uses(self, readings: Readings, allocations: Sequence[GpuAllocation]) -> None:
        """Leave out the jobs of another cluster on this machine, where that is configured."""
        uses = readings.of(CgroupCollector)
        self.uses = uses or {}
        self._sluids = {a.sluid: a.jobid for a in allocations if a.sluid}
        self._sluids |= {use.sluid: use.jobid for use in self.uses.values() if use.sluid}
        if uses is not None and not self.config.unrecorded_jobs:
            own = {allocation.jobid for allocation in allocations} | self.state.table.jobs.keys()
            self.uses = {jobid: use for jobid, use in uses.items() if jobid in own}
            readings.put(CgroupCollector, self.uses)

    def _catch_up(
        self,
        allocations: Sequence[GpuAllocation],
        jobid: int | None,
        at_ns: int,
        host: HostReading | None,
        zones: Mapping[str, RaplZone],
    ) -> tuple[list[JobChange], int | None]:
        """Apply the starts and ends since the last charge; returns those of `jobid` unapplied.

        Where the hook read the counters because no exporter answered, its readings are charged
        first, in their order: the split between jobs is then exact, however long ago it was. Also
        returns the moment of the last of them.
        """
        right_now, charged_ns = [], None
        for change in self.state.table.changes(allocations, at_ns):
            if jobid is not None and change.allocation.jobid == jobid:
                right_now.append(change)
                continue
            moment = min(change.at_ns, at_ns)
            if change.reading and change.reading.boot_ns <= at_ns:
                moment = change.reading.boot_ns
                # No reading shows what jobs used until then, only what they used until now.
                fraction = self.state.previous.fraction(charged_ns or 0, moment, at_ns)
                activity = self._activity(host, self._cpu_seconds(at_ns)).scaled(fraction)
                # Ranges and components are those of the zones now.
                zones_then = {
                    name: replace(zones[name], uj=uj)
                    for name, uj in change.reading.rapl_uj.items()
                    if name in zones
                }
                reading = EnergyReading(moment, gpu_mj=change.reading.nvml_mj, zones=zones_then)
                self._charge_energy(reading, activity)
                if change.reading.rapl_uj:
                    charged_ns = max(charged_ns or 0, moment)
            self.state.table.apply(change, moment)
        return right_now, charged_ns

    def _energy_reading(self, readings: Readings, zones: Mapping[str, RaplZone]) -> EnergyReading:
        gpu_mj = {gpu.uuid: gpu.mj for gpu in readings.of(GpuEnergyCollector) or []}
        gpus = readings.of(GpuCollector)
        meters = readings.of(PowerCollector) or []
        self.meter_source = meters[0].source if meters else "none"
        return EnergyReading(
            readings.at_ns,
            gpu_mj=gpu_mj,
            # GPUs without an energy counter: their power is integrated instead. What was read
            # earlier is not the power of now; the time until the next reading is estimated.
            gpu_watts={
                gpu.uuid: gpu.power_watts
                for gpu in (gpus.gpus if gpus else ())
                if gpu.power_watts is not None and gpu.uuid not in gpu_mj
            },
            zones=zones,
            meter_watts=meters[0].watts if meters else None,
            meter_uj=meters[0].energy_uj if meters else None,
        )

    def _presences(self) -> list[JobPresence]:
        return [job.presence(self.slots) for job in self.state.table.jobs.values()]

    def _charge_energy(self, reading: EnergyReading, activity: NodeActivity) -> None:
        self.state.energy.settle(reading, self._presences(), self.slots, activity)

    def _cpu_seconds(self, at_ns: int) -> dict[int, float]:
        running = [job.jobid for job in self.state.table.running()]
        return self.state.previous.cpu_gains(self.uses, running, at_ns)

    def _activity(self, host: HostReading | None, cpu_seconds: Mapping[int, float]) -> NodeActivity:
        if host is None:
            return NodeActivity(job_cpu_seconds=cpu_seconds, sm_share=self.sm_share)
        jobs_memory = sum(use.memory_bytes or 0 for use in self.uses.values())
        used = host.memory_total_bytes - host.memory_available_bytes
        return NodeActivity(
            cpus=host.cpus,
            memory_bytes=host.memory_total_bytes,
            job_cpu_seconds=cpu_seconds,
            busy_seconds=self.state.previous.busy_gain(host),
            system_memory_bytes=max(0, used - jobs_memory),
            sm_share=self.sm_share,
        )

    def _count(self, readings: Readings, cpu_seconds: Mapping[int, float]) -> None:
        """Add to the counters of jobs and users what they gained since the last charge."""
        at_ns, previous, counters = readings.at_ns, self.state.previous, self.state.job_counters
        activity = readings.of(GpuActivityCollector) or {}
        for gpu, seen in activity.items():
            self._gpu_activity.setdefault(gpu, GpuActivity()).add(seen)
        if 0 <= previous.at_ns < at_ns:
            span, present = (previous.at_ns, at_ns), self._presences()
            counters.count_use(present, self.slots, activity, cpu_seconds, span)
            self.state.energy.count_held(present, span)
            if gained := previous.traffic_gain(readings.of(NetworkCollector)):
                counters.count_traffic(present, cpu_seconds, *gained, span)
        ledger = self.state.energy.ledger
        configured = EnergyFactors(self.config.emissions_grams_per_kwh, self.config.price_per_kwh)
        self.factors = configured.updated_from(self.config.factors_file)
        energy = {jobid: sum(parts.values()) for jobid, parts in ledger.accounts.items()}
        consumers = dict.fromkeys(CONSUMERS, 0)
        for (consumer, _), uj in ledger.totals.items():
            consumers[consumer] += uj
        counters.count_costs(energy, consumers, self.factors)
        self.state.user_counters.count(self._job_figures(), at_ns)

    def _job_figures(self) -> list[JobFigures]:
        """Every job with its user and what grows, for the counters of users."""
        rows: list[JobFigures] = []
        for jobid, job in self.state.table.jobs.items():
            figures: dict[tuple[str, ...], float] = {
                ("energy_joules", component): uj / 1e6
                for component, uj in self.state.energy.ledger.accounts.get(jobid, {}).items()
            }
            counter = self.state.job_counters.of(jobid)
            figures |= counter.figures(self.factors, self.config.currency)
            rows.append((jobid, (job.user, job.account, job.partition), figures))
        return rows
