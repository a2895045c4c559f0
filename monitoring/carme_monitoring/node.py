"""The exporter of a node: reads, charges, accumulates, and says so in samples."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from carme import __version__
from carme.config import ExporterSettings
from carme.node import hook
from carme.node.gpu_allocations import AllocationReader, CounterReading, GpuAllocation
from carme_monitoring import emission_factors as factor
from carme_monitoring import state_file
from carme_monitoring.collectors import cgroup, disk, host, jobs, network, power, rapl
from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.collectors.crosscheck import CrossCheck
from carme_monitoring.collectors.jobs import Change, JobTable
from carme_monitoring.emission_factors import EmissionFactors
from carme_monitoring.energy.accountant import Accountant, EnergyReading, Zone
from carme_monitoring.energy.ledger import CONSUMERS
from carme_monitoring.energy.shares import GpuSlot, NodeActivity
from carme_monitoring.gpus import GpuReading, add_samples, slots, with_absent
from carme_monitoring.guard import Guards
from carme_monitoring.job_counters import JobCounters
from carme_monitoring.previous_reading import PreviousReading
from carme_monitoring.report import (
    add_energy_samples,
    add_job_samples,
    add_xid_samples,
    job_figures,
)
from carme_monitoring.sampler import GpuActivity, GpuSampler
from carme_monitoring.samples import Samples
from carme_monitoring.user_counters import UserCounters


class Gpus(Protocol):
    """Where GPUs are read from: NVML, or a replay."""

    xids: dict[tuple[str, int], int]

    def read(self) -> list[GpuReading]: ...
    def energy_mj(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Roots:
    """Where the kernel's files lie, and the clocks: tests have their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")
    now_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    time_s: Callable[[], float] = time.time


class NodeExporter:
    """One node. `settle` charges up to now; `collect` does and gives all samples."""

    def __init__(
        self,
        node: str,
        config: ExporterSettings,
        gpus: Gpus | None,
        *,
        roots: Roots = Roots(),  # noqa: B008  frozen
        guards: Guards | None = None,
        slow_power: Sequence[power.SlowReader] = (),
        sampler: GpuSampler | None = None,
    ) -> None:
        self.node, self.config, self.gpus, self._roots = node, config, gpus, roots
        self.guards = guards or Guards()
        self.sampler = sampler
        self.table = JobTable(config.keep_seconds)
        self.accountant = Accountant(max_step_seconds=4 * config.interval_seconds)
        self.tallies = JobCounters()
        # Prometheus must read at least once in this time: see carme.config.Prometheus.
        self.owners = UserCounters(2 * config.interval_seconds)
        self._boot = hook.boot_id(str(roots.proc))
        self._watch = AllocationReader(config.run, node, self._boot)
        self._rapl = rapl.Rapl(self.guards.value_errors, roots.sys)
        self._rapl_totals = rapl.RaplTotals()
        self._power = power.NodePower(roots.sys, slow_power)
        self._cgroups = cgroup.JobCgroups(node, roots.cgroup, roots.proc, os.sysconf("SC_CLK_TCK"))
        self._check = CrossCheck(roots.proc)
        self._slots: list[GpuSlot] = []
        self._gpus_now: list[GpuReading] = []
        self._gpus_known: list[GpuReading] = []
        self._sm: dict[tuple[str, int], float] = {}
        self._seen: dict[str, GpuActivity] = {}
        self._uses: dict[int, JobUse] = {}
        self._before = PreviousReading()
        self._state_failures = 0
        self._lock = threading.RLock()
        self.state_path = config.state / f"{node}.json"
        self._restore()

    # -- charging ---------------------------------------------------------------------------

    def settle(self, jobid: int | None = None) -> bool:
        """Charge everything up to this moment. `jobid`: its prolog or epilog runs right now.

        True when energy counters were read, so that the hook need not read them itself.
        """
        if self.gpus and not self._slots:
            self._read_gpus()
        # A job is waiting for this: its counters are read before a collection that runs is over.
        counters = self._counters() if jobid is not None else None
        with self._lock:
            if counters is None or counters[2] <= self._before.at_ns:  # one was charged meanwhile
                counters = self._counters()
            energy, zones, at_ns = counters
            # Reading the rest takes longer, so it comes after the moment that counts.
            meters = self._meters()
            holdings = self._watch.read(force=jobid is not None)
            uses = self.guards.run("cgroup", self._cgroups.read)
            self._uses = self._ours(uses or {}, holdings)
            machine = self.guards.run("host", lambda: host.read(self._roots.proc))
            traffic = self.guards.run(
                "network", lambda: network.read(self._roots.proc, self._roots.sys)
            )
            self._rapl_totals.update(zones)
            now_changes, charged_ns = self._catch_up(holdings, jobid, at_ns, machine)
            cpu_seconds = self._cpu_seconds(at_ns)
            activity = self._activity(machine, cpu_seconds)
            if charged_ns is not None:
                activity = activity.part(self._before.fraction(charged_ns, at_ns, at_ns))
            reading = EnergyReading(
                at_ns,
                gpu_mj=energy or {},
                gpu_watts=self._gauge_watts(energy),
                zones=zones,
                meter_watts=meters[0].watts if meters else None,
                meter_uj=meters[0].energy_uj if meters else None,
            )
            self._charge(reading, activity)
            self._accumulate(at_ns, cpu_seconds, traffic)
            for change in now_changes:
                self.table.apply(change, at_ns)
            if uses is not None:  # what could not be read has not gone away
                self._see_uses(at_ns)
            self._before.remember(at_ns, self._uses, machine, traffic)
            self._forget_old(at_ns)
            self._save()
            return energy is not None

    def _counters(self) -> tuple[dict[str, int] | None, dict[str, Zone], int]:
        """Energy counters of GPUs and processors, and when they were read."""
        energy = self.guards.run("gpu", self.gpus.energy_mj) if self.gpus else {}
        zones = self.guards.run("rapl", self._rapl.read) or {}
        return energy, zones, self._roots.now_ns()

    def _meters(self) -> list[power.PowerReading]:
        found = self.guards.run("power", self._power.read)
        if found is not None and self._power.slow:
            self.guards.run("power", self._power.check)
        return found or []

    def _ours(
        self, uses: dict[int, JobUse], holdings: Sequence[GpuAllocation]
    ) -> dict[int, JobUse]:
        """Without those of another cluster on this machine, where that has been said."""
        if self.config.unrecorded_jobs:
            return uses
        known = {holding.jobid for holding in holdings} | self.table.entries.keys()
        return {jobid: use for jobid, use in uses.items() if jobid in known}

    def _catch_up(
        self,
        holdings: Sequence[GpuAllocation],
        jobid: int | None,
        at_ns: int,
        machine: host.Host | None,
    ) -> tuple[list[Change], int | None]:
        """Let jobs come and go that did so since the last look; those of right now are returned.

        Where the hook read the counters because no exporter answered, its readings are charged
        first, in their order: the change of hands is then exact, however long ago it was. The
        moment of the last of them is returned, too.
        """
        right_now, charged_ns = [], None
        for change in self.table.changes(holdings, at_ns):
            if jobid is not None and change.holding.jobid == jobid:
                right_now.append(change)
                continue
            moment = min(change.at_ns, at_ns)
            if change.reading and change.reading.boot_ns <= at_ns:
                moment = change.reading.boot_ns
                # What jobs did until then is not known, only what they did until now.
                fraction = self._before.fraction(charged_ns or 0, moment, at_ns)
                activity = self._activity(machine, self._cpu_seconds(at_ns)).part(fraction)
                self._charge(self._hook_reading(change.reading), activity)
                if change.reading.rapl_uj:
                    charged_ns = max(charged_ns or 0, moment)
            self.table.apply(change, moment)
        return right_now, charged_ns

    def _hook_reading(self, taken: CounterReading) -> EnergyReading:
        ranges = self._rapl.read()
        zones = {
            name: Zone(uj, ranges[name].range_uj, ranges[name].component)
            for name, uj in taken.rapl_uj.items()
            if name in ranges
        }
        return EnergyReading(taken.boot_ns, gpu_mj=taken.nvml_mj, zones=zones)

    def _cpu_seconds(self, at_ns: int) -> dict[int, float]:
        live = [entry.jobid for entry in self.table.live()]
        return self._before.cpu_gains(self._uses, live, at_ns)

    def _see_uses(self, at_ns: int) -> None:
        for _ in self.table.see_uses(self._uses, at_ns, self._roots.time_s()):
            self._check.conflicts.add(("stale_record",))

    def _charge(self, reading: EnergyReading, activity: NodeActivity) -> None:
        present = [entry.presence(self._slots) for entry in self.table.entries.values()]
        self.accountant.settle(reading, present, self._slots, activity)

    def _activity(
        self, machine: host.Host | None, cpu_seconds: Mapping[int, float]
    ) -> NodeActivity:
        if machine is None:
            return NodeActivity(job_cpu_seconds=cpu_seconds, sm_share=self._sm)
        jobs_memory = sum(use.memory_bytes or 0 for use in self._uses.values())
        used = machine.memory_total_bytes - machine.memory_available_bytes
        return NodeActivity(
            cpus=machine.cpus,
            memory_bytes=machine.memory_total_bytes,
            job_cpu_seconds=cpu_seconds,
            busy_seconds=self._before.busy_gain(machine),
            system_memory_bytes=max(0, used - jobs_memory),
            sm_share=self._sm,
        )

    def _accumulate(
        self, at_ns: int, cpu_seconds: Mapping[int, float], traffic: network.Traffic | None
    ) -> None:
        seen = self._drain()
        for gpu, look in seen.items():
            mine = self._seen.setdefault(gpu, GpuActivity())
            mine.seconds += look.seconds
            mine.utilised_seconds += look.utilised_seconds
        if 0 <= self._before.at_ns < at_ns:
            span = (self._before.at_ns, at_ns)
            present = [entry.presence(self._slots) for entry in self.table.entries.values()]
            self.tallies.waste(present, self._slots, seen, cpu_seconds, span)
            for job in present:
                held = self.accountant.held_seconds
                lasted = job.overlap(*span) * self._before.seconds(at_ns)
                if lasted > 0:
                    held[job.jobid] = held.get(job.jobid, 0.0) + lasted
            if gained := self._before.traffic_gain(traffic):
                self.tallies.traffic(present, cpu_seconds, *gained, span)
        ledger = self.accountant.ledger
        energy = {jobid: sum(parts.values()) for jobid, parts in ledger.accounts.items()}
        self.tallies.costs(energy, self.factors())
        consumers = dict.fromkeys(CONSUMERS, 0)
        for (who, _), uj in ledger.totals.items():
            consumers[who] += uj
        self.tallies.consumer_costs(consumers, self.factors())
        self.owners.count(job_figures(self), at_ns)

    def meter_source(self) -> str:
        """What the node's power is read from."""
        found = self._power.read()
        return found[0].source if found else "none"

    def _drain(self) -> dict[str, GpuActivity]:
        if self.sampler is None:
            return {}
        return self.guards.run("gpu", self.sampler.drain) or {}

    def _gauge_watts(self, energy: Mapping[str, int] | None) -> dict[str, float]:
        """GPUs without an energy counter: their power is integrated instead."""
        return {
            gpu.uuid: gpu.power_watts
            for gpu in self._gpus_now
            if gpu.power_watts is not None
            and gpu.energy_mj is None
            and gpu.uuid not in (energy or {})
        }

    def _forget_old(self, at_ns: int) -> None:
        for jobid in self.table.expired(at_ns):
            del self.table.entries[jobid]
            self.accountant.ledger.forget(jobid)
            self.accountant.held_seconds.pop(jobid, None)
            self.tallies.forget(jobid)
            self.owners.forget(jobid)
            self._before.forget(jobid)

    def factors(self) -> EmissionFactors:
        """Grams and price per kWh now."""
        static = EmissionFactors(self.config.emissions_grams_per_kwh, self.config.price_per_kwh)
        return factor.current(static, self.config.factors_file)

    # -- telling ----------------------------------------------------------------------------

    def collect(self) -> Samples:
        """Charge up to now and say everything."""
        began = time.monotonic()
        out = Samples()
        self._read_gpus()
        with self._lock:
            self.settle()
            if self.sampler:
                self._choose_profiles()
            self._sm = self.guards.run("jobs", self._cross_check) or {}
            out.add("carme_exporter_info", (__version__, "node", self.node), 1)
            add_samples(out, self._gpus_now, self._gpus_known)
            add_xid_samples(out, self._gpus_now, self.gpus)
            self._rapl_totals.add_samples(out, self._rapl.names())
            power.add_samples(out, self._power.read())
            if machine := self.guards.run("host", lambda: host.read(self._roots.proc)):
                host.add_samples(out, machine)
            if traffic := self.guards.run(
                "network", lambda: network.read(self._roots.proc, self._roots.sys)
            ):
                network.add_samples(out, traffic)
            if disks := self.guards.run("disk", lambda: disk.read(self._roots.proc)):
                disk.add_samples(out, disks)
            cgroup.add_samples(out, self.node, self._uses)
            jobs.add_samples(out, self.node, self.table, self._slots, self._gpus_now)
            seen, self._seen = self._seen, {}
            add_job_samples(out, self, self._gpus_now, self._slots, self._uses, seen)
            add_energy_samples(out, self)
            self.owners.add_samples(out, self._before.at_ns)
            for labels, count in self._check.conflicts.values.items():
                out.add("carme_gpu_holder_conflicts_total", labels, count)
            out.add("carme_jobs_broken_records", (), self._watch.broken)
            out.add("carme_exporter_state_failures_total", (), self._state_failures)
        self.guards.add_samples(out)
        out.add("carme_exporter_collection_seconds", (), round(time.monotonic() - began, 6))
        out.add("carme_exporter_collected_timestamp_seconds", (), round(self._roots.time_s(), 3))
        return out

    def _read_gpus(self) -> None:
        if self.gpus is None:
            return
        found = self.guards.run("gpu", self.gpus.read)
        if found is not None:
            self._gpus_now = found
            self._gpus_known = with_absent(self._gpus_known, found)
            self._slots = slots(self._gpus_known)

    def _cross_check(self) -> dict[tuple[str, int], float]:
        sluids = {holding.sluid: holding.jobid for holding in self._watch.read() if holding.sluid}
        sluids |= self._cgroups.sluids
        return self._check.check(self.table, self._gpus_now, self._slots, self._uses, sluids)

    def _choose_profiles(self) -> None:
        wanted = {
            entry.jobid: [self._slots[i].gpu for i in entry.gpus if i < len(self._slots)]
            for entry in self.table.live()
            if self.config.bursts == "always" or (entry.profile and self.config.bursts == "asked")
        }
        if self.sampler:
            self.sampler.follow(wanted)

    # -- remembering ------------------------------------------------------------------------

    def _save(self) -> None:
        content: dict[str, Any] = {
            "node": self.node,
            "boot_id": self._boot,
            "accountant": self.accountant.save(),
            "jobs": self.table.save(),
            "closed": sorted(self.table.closed),
            "tallies": self.tallies.save(),
            "owners": self.owners.save(),
            "rapl": self._rapl_totals.values,
            "before": self._before.save(),
        }
        try:
            state_file.write(self.state_path, content)
        except OSError:
            self._state_failures += 1

    def _restore(self) -> None:
        saved = state_file.read(self.state_path)
        if saved is None:
            return
        same_boot = saved.get("boot_id") == self._boot
        try:
            accountant = Accountant(max_step_seconds=4 * self.config.interval_seconds)
            accountant.restore(saved["accountant"], same_boot)
            tallies, table = JobCounters(), JobTable(self.config.keep_seconds)
            tallies.restore(saved["tallies"])
            owners = UserCounters(2 * self.config.interval_seconds)
            owners.restore(saved["owners"], same_boot)
            if same_boot:
                table.restore(saved["jobs"], saved.get("closed", ()))
                self._before = PreviousReading.restored(saved["before"])
                self._rapl_totals.values = {k: (a, b) for k, (a, b) in saved["rapl"].items()}
            else:
                for jobid in list(accountant.ledger.accounts):
                    accountant.ledger.forget(jobid)
                tallies.jobs = {}
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # of another version, or damaged: begin anew rather than not at all
        self.accountant, self.tallies, self.table = accountant, tallies, table
        self.owners = owners
