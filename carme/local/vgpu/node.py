"""The virtual GPUs of one node, following the jobs that hold them."""

import time
from collections.abc import Callable
from pathlib import Path

from carme.local.vgpu.cards import Card
from carme.local.vgpu.job_usage import Follower
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

MAX_GAP_NS = 60 * 10**9
"""A daemon away for longer counts as a machine that was off: no energy for that time."""
STILL_NS = 100_000_000
"""After a hand-over the counters stand still so long: real ones too advance in steps, and whoever
is told of it reads the very value at which the card changed hands."""
_RESERVED_BYTES = 300 * 2**20
_THERMAL_SECONDS = 8.0
_SMOOTHING_SECONDS = 0.15
"""Utilisation is averaged over about this, as a driver does; power and energy are not."""
_THROTTLE_IDLE = 1
_LOAD_SECONDS = 2.0
_IDLE_LEVEL = 0.1
"""A mean utilisation over about two seconds below this is shown as 0: an idle JupyterLab answers a
request now and then, and that is no work on a GPU."""


def boottime_ns() -> int:
    """The clock that nobody can set and that runs through suspends."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class VirtualNode:
    """A node's cards: `tick` brings them up to date, `faults` and `xid` are for tests."""

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
        self._holders = gpu_allocations.AllocationReader(run, self.name, hook.boot_id(str(proc)))
        self._follower = Follower(self.name, cgroup, proc)
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
        """Replay the hand-overs that happened while no daemon ran, at the last power seen."""
        moments: list[tuple[int, int, int]] = []
        for holding in self._holders.read():
            for moment, jobid in ((holding.start, holding.jobid), (holding.end, 0)):
                if moment:
                    moments += [(moment.boot_ns, index, jobid) for index in holding.gpus]
        for at_ns, index, jobid in sorted(moments):
            meter = self.meters[index] if index < len(self.meters) else None
            if meter and meter.at_ns < at_ns <= self._now_ns() and meter.jobid != jobid:
                meter.advance(at_ns, meter.power_mw)
                self.record.append([meter.hand_over(jobid, at_ns + wall_minus_boot)])

    def tick(self, told: bool = False) -> None:
        """Count the energy since the last tick, look who holds what, publish.

        `told`: the hook has just said that a job came or went.
        """
        now, wall = self._now_ns(), self._time_ns()
        if now < self._still_until_ns and not told:
            return
        held: dict[int, list[int]] = {}
        for meter in self.meters:
            if meter.jobid:
                held.setdefault(meter.jobid, []).append(meter.gpu)
        self._follower.look(held, now)
        for meter, card in zip(self.meters, self.cards, strict=True):
            usage = self._follower.get(meter.jobid)
            share = min(1.0, usage.cores / len(held[meter.jobid])) if usage else 0.0
            seconds = max(0, now - meter.at_ns) / 1e9
            meter.advance(now, card.model.power_mw(share))
            self._show(card, meter, share, seconds, len(held.get(meter.jobid, ())), wall)
        self._change_hands(wall, told)
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
        self.tick(told=True)

    def raise_xid(self, gpu: int, xid: int) -> None:
        """Report an XID error of the card."""
        self._xids[gpu] = (self._xids[gpu][0] + 1, xid)
        self.tick(told=True)

    def open_spans(self) -> list[Span]:
        """Who holds what now, with the joules so far."""
        return [meter.current(self._time_ns()) for meter in self.meters]

    def close(self) -> None:
        """Save and unmap."""
        self.tick(told=True)
        self._gpu_file.close()
        self._meter_file.close()

    def _change_hands(self, wall: int, told: bool) -> None:
        holder: dict[int, int] = {}
        for holding in self._holders.read(force=told):
            if holding.start and not holding.is_over:  # the later start wins: a lost epilog
                holder.update(dict.fromkeys(holding.gpus, holding.jobid))
        ended = []
        for meter in self.meters:
            jobid = holder.get(meter.gpu, 0)
            if jobid != meter.jobid:
                ended.append(meter.hand_over(jobid, wall))
        if ended and told:
            self._still_until_ns = self._now_ns() + STILL_NS
        self.record.append(ended)

    def _show(
        self, card: Card, meter: Meter, share: float, seconds: float, shared_by: int, wall: int
    ) -> None:
        """Fill in what the library answers for this card."""
        state, index, model = self._states[card.index], card.index, card.model
        usage = self._follower.get(meter.jobid)
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
