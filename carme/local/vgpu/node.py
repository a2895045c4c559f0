"""The virtual GPUs of one node, following the jobs that hold them."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from carme.local.vgpu.cards import Card
from carme.local.vgpu.meter import EnergyRecord, Meter, Span
from carme.local.vgpu.state import (
    MAX_FAULTS,
    MAX_PROCESSES,
    FaultState,
    GpuState,
    ProcessState,
    gpu_file,
    meter_file,
)
from carme.node import gpu_allocations, hook
from carme.node.cgroups import JobCgroup, find_jobs, jobid_of, pids

MAX_GAP_NS = 60 * 10**9
"""After a longer pause of the daemon the machine counts as off: no energy for that time."""
STILL_NS = 100_000_000
"""How long counters stand still after a card changed hands, so that listeners read the value of
that moment. Real counters advance in steps, too."""
_RESERVED_BYTES = 300 * 2**20
_THERMAL_SECONDS = 8.0
_SMOOTHING_SECONDS = 0.15
"""Utilisation is averaged over about this time, as a driver does; power and energy are not."""
_THROTTLE_IDLE = 1
_LOAD_SECONDS = 2.0
_IDLE_LEVEL = 0.1
"""A lower mean utilisation over about two seconds is shown as 0: an idle JupyterLab answers a
request now and then, which is no work on a GPU."""
_PROCESSES_EVERY_NS = 10**9
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class VgpuJobUsage:
    """CPU and memory use of a job, from its cgroup."""

    cgroup: JobCgroup
    cpu_ns: int
    at_ns: int
    cores: float = 0.0
    """CPU use since the last update, in cores."""
    processes: list[tuple[int, int]] = field(default_factory=list)
    """Pid and resident bytes."""
    listed_ns: int = 0


class JobUsageReader:
    """CPU and memory use of jobs on one node."""

    def __init__(self, node: str, cgroup: Path, proc: Path) -> None:
        self._node, self._cgroup, self._proc = node, cgroup, proc
        self._usage: dict[int, VgpuJobUsage] = {}

    def get(self, jobid: int) -> VgpuJobUsage | None:
        """The job's usage at the last update, if it is followed."""
        return self._usage.get(jobid)

    def update(self, jobids: Iterable[int], now_ns: int) -> None:
        """Read the usage of these jobs, and forget all others."""
        followed = set(jobids)
        self._usage = {jobid: usage for jobid, usage in self._usage.items() if jobid in followed}
        if missing := followed - self._usage.keys():
            for cgroup in find_jobs(self._cgroup, self._node):
                jobid = jobid_of(cgroup, self._proc)
                cpu_ns = _cpu_ns(cgroup) if jobid in missing else None
                if jobid is not None and cpu_ns is not None:
                    self._usage[jobid] = VgpuJobUsage(cgroup, cpu_ns, now_ns)
        for usage in self._usage.values():
            self._read(usage, now_ns)

    def _read(self, usage: VgpuJobUsage, now_ns: int) -> None:
        cpu_ns = _cpu_ns(usage.cgroup)
        if cpu_ns is None:  # the job has ended, but its epilog has not run yet
            usage.cores, usage.processes = 0.0, []
            return
        if now_ns > usage.at_ns:
            usage.cores = max(0, cpu_ns - usage.cpu_ns) / (now_ns - usage.at_ns)
            usage.cpu_ns, usage.at_ns = cpu_ns, now_ns
        if now_ns - usage.listed_ns >= _PROCESSES_EVERY_NS:
            usage.listed_ns = now_ns
            usage.processes = _processes(usage.cgroup, self._proc)


def _cpu_ns(cgroup: JobCgroup) -> int | None:
    path = cgroup.path("cpuacct")
    if path is None:
        return None
    try:
        if not cgroup.is_v2:
            return int((path / "cpuacct.usage").read_text())
        for line in (path / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) * 1000
    except (OSError, ValueError):
        return None
    return None


def _processes(cgroup: JobCgroup, proc: Path) -> list[tuple[int, int]]:
    processes = []
    for pid in pids(cgroup):
        try:
            resident = int((proc / str(pid) / "statm").read_text().split()[1])
            name = (proc / str(pid) / "comm").read_text()
        except (OSError, ValueError, IndexError):
            continue
        if not name.startswith("slurmstepd"):
            processes.append((pid, resident * _PAGE_BYTES))
    return processes


def boottime_ns() -> int:
    """Nanoseconds since boot, including suspend; nobody can set this clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class VirtualNode:
    """The cards of a node: `tick` updates them; `set_fault` and `raise_xid` are for tests."""

    def __init__(
        self,
        cards: tuple[Card, ...],
        folder: Path,
        run: Path,
        *,
        cgroup: Path = Path("/sys/fs/cgroup"),
        proc: Path = Path("/proc"),
        now_ns: Callable[[], int] = boottime_ns,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.cards, self.name = cards, cards[0].node
        boot_id = hook.boot_id(str(proc))
        self._allocations = gpu_allocations.AllocationReader(run, self.name, boot_id)
        self._job_usage = JobUsageReader(self.name, cgroup, proc)
        self._now_ns, self._time_ns = now_ns, time_ns
        self._gpu_file = gpu_file(folder, self.name, len(cards))
        self._meter_file = meter_file(folder, self.name, len(cards))
        self.record = EnergyRecord(folder / f"{self.name}.jsonl")
        self.meters = [Meter(self.name, card.index, card.uuid) for card in cards]
        self.faults: dict[tuple[int, str], int] = {}
        """(card, call or `*`) → NVML error code."""
        self._xids = [(0, 0)] * len(cards)
        self._states = [_fresh(card) for card in cards]
        self._smooth = [0.0] * len(cards)
        self._load = [0.0] * len(cards)
        self._links = [0.0] * len(cards)
        self._heat = [card.model.temperature_c(card.model.idle_mw) for card in cards]
        self._still_until_ns = 0
        self._restore()

    def _restore(self) -> None:
        now, wall = self._now_ns(), self._time_ns()
        if not self._meter_file.is_new:
            last = {span["gpu"]: span for span in self.record.read()}
            saved = self._meter_file.read()
            for meter, state in zip(self.meters, saved, strict=True):
                meter.restore(state, last.get(meter.gpu))
        for meter, card in zip(self.meters, self.cards, strict=True):
            if not 0 < now - meter.at_ns <= MAX_GAP_NS:  # new, another boot, or away for long
                meter.at_ns = now
            meter.power_mw = meter.power_mw or card.model.idle_mw
            meter.span_since_ns = meter.span_since_ns or wall
        self._settle_gap(wall - now)
        for meter in self.meters:
            meter.advance(now, meter.power_mw)
        self.tick()

    def _settle_gap(self, wall_minus_boot: int) -> None:
        """Replay allocations from the time when no daemon ran, at the last known power."""
        moments: list[tuple[int, int, int]] = []
        for allocation in self._allocations.read():
            for moment, jobid in ((allocation.start, allocation.jobid), (allocation.end, 0)):
                if moment:
                    moments += [(moment.boot_ns, index, jobid) for index in allocation.gpus]
        for at_ns, index, jobid in sorted(moments):
            meter = self.meters[index] if index < len(self.meters) else None
            if meter and meter.at_ns < at_ns <= self._now_ns() and meter.jobid != jobid:
                meter.advance(at_ns, meter.power_mw)
                self.record.append([meter.hand_over(jobid, at_ns + wall_minus_boot)])

    def tick(self, force: bool = False) -> None:
        """Count the energy since the last tick, read the allocations, publish the cards.

        `force`: read the allocations even if they seem unchanged, because a job started or ended.
        """
        now, wall = self._now_ns(), self._time_ns()
        if now < self._still_until_ns and not force:
            return
        gpus_by_job: dict[int, list[int]] = {}
        for meter in self.meters:
            if meter.jobid:
                gpus_by_job.setdefault(meter.jobid, []).append(meter.gpu)
        self._job_usage.update(gpus_by_job, now)
        for meter, card in zip(self.meters, self.cards, strict=True):
            usage = self._job_usage.get(meter.jobid)
            share = min(1.0, usage.cores / len(gpus_by_job[meter.jobid])) if usage else 0.0
            seconds = max(0, now - meter.at_ns) / 1e9
            meter.advance(now, card.model.power_mw(share))
            self._show(card, meter, share, seconds, len(gpus_by_job.get(meter.jobid, ())), wall)
        self._hand_over(wall, force)
        self._meter_file.publish([meter.save() for meter in self.meters])
        self._gpu_file.publish(self._states)

    def set_fault(self, gpu: int, call: str, code: int | None) -> None:
        """Make `call` (or `*`: every call) of a card fail with NVML's `code`; None ends it."""
        if code is None:
            self.faults = {
                key: value
                for key, value in self.faults.items()
                if not (key[0] == gpu and call in ("*", key[1]))
            }
        else:
            self.faults[gpu, call] = code
        self.tick(force=True)

    def raise_xid(self, gpu: int, xid: int) -> None:
        """Report an XID error of the card."""
        self._xids[gpu] = (self._xids[gpu][0] + 1, xid)
        self.tick(force=True)

    def open_spans(self) -> list[Span]:
        """The open span of each card, with its joules so far."""
        return [meter.current(self._time_ns()) for meter in self.meters]

    def close(self) -> None:
        """Save the state and unmap the files."""
        self.tick(force=True)
        self._gpu_file.close()
        self._meter_file.close()

    def _hand_over(self, wall: int, force: bool) -> None:
        holders: dict[int, int] = {}
        for allocation in self._allocations.read(force=force):
            if allocation.start and not allocation.is_over:  # a later start wins: a lost epilog
                holders.update(dict.fromkeys(allocation.gpus, allocation.jobid))
        ended = []
        for meter in self.meters:
            jobid = holders.get(meter.gpu, 0)
            if jobid != meter.jobid:
                ended.append(meter.hand_over(jobid, wall))
        if ended and force:
            self._still_until_ns = self._now_ns() + STILL_NS
        self.record.append(ended)

    def _show(
        self, card: Card, meter: Meter, share: float, seconds: float, shared_by: int, wall: int
    ) -> None:
        """Update what the library shows for this card."""
        state, index, model = self._states[card.index], card.index, card.model
        usage = self._job_usage.get(meter.jobid)
        weight = min(1.0, seconds / _SMOOTHING_SECONDS)
        self._smooth[index] += weight * (share - self._smooth[index])
        self._load[index] += min(1.0, seconds / _LOAD_SECONDS) * (share - self._load[index])
        level = self._smooth[index] if self._load[index] > _IDLE_LEVEL else 0.0
        target = model.temperature_c(meter.power_mw)
        self._heat[index] += min(1.0, seconds / _THERMAL_SECONDS) * (target - self._heat[index])
        state.temperature_c = round(self._heat[index])
        state.power_mw = meter.power_mw
        state.energy_mj = meter.energy_pj // 10**9
        state.util_gpu_percent = round(100 * level)
        state.util_memory_percent = round(60 * level)
        state.clock_mhz = type(state.clock_mhz)(*model.clocks_mhz(level))
        state.throttle_reasons = 0 if level else _THROTTLE_IDLE
        state.pstate = 0 if level else 8
        state.pcie_tx_kb_per_second = round(model.pcie_kb_per_second * level * 0.1)
        state.pcie_rx_kb_per_second = round(model.pcie_kb_per_second * level * 0.3)
        if model.nvlinks and shared_by > 1:  # traffic between the cards of one job
            self._links[index] += seconds * level * 2**20
            state.nvlink_tx_kib = state.nvlink_rx_kib = int(self._links[index])
        state.updated_us = wall // 1000
        state.xid_count, state.xid_last = self._xids[index]
        room = model.memory_bytes - _RESERVED_BYTES
        processes = usage.processes[:MAX_PROCESSES] if usage else []
        used = 0
        for slot, (pid, memory) in enumerate(processes):
            part = min(memory // max(1, shared_by), room - used)
            used += part
            percent = round(100 * level / len(processes))
            state.processes[slot] = ProcessState(pid=pid, sm_percent=percent, memory_bytes=part)
        state.process_count, state.memory_used_bytes = len(processes), used
        faults = [(call, code) for (gpu, call), code in self.faults.items() if gpu == index]
        for slot, (call, code) in enumerate(faults[:MAX_FAULTS]):
            state.faults[slot] = FaultState(call=call.encode()[:55], code=code)
        state.fault_count = min(len(faults), MAX_FAULTS)


def _fresh(card: Card) -> GpuState:
    model = card.model
    return GpuState(
        name=model.name.encode(), uuid=card.uuid.encode(), serial=card.serial.encode(),
        bus_id=card.bus_id.encode(), minor=card.minor, pci_bus=card.minor + 1,
        pci_device_id=model.pci_device_id, pci_subsystem_id=model.pci_device_id,
        compute_major=model.compute_capability[0], compute_minor=model.compute_capability[1],
        memory_total_bytes=model.memory_bytes, memory_reserved_bytes=_RESERVED_BYTES,
        limit_mw=model.limit_mw, limit_min_mw=model.min_limit_mw, limit_max_mw=model.limit_mw,
        clock_max_mhz=model.clock_mhz, has_ecc=model.ecc, has_mig=model.mig, nvlinks=model.nvlinks,
    )  # fmt: skip
