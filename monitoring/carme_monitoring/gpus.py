"""GPUs as they were read, from NVML or from a replay."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from carme_monitoring.energy.shares import GpuSlot

THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
"""NVML's bits."""
CLOCKS = ("graphics", "sm", "memory", "video")


@dataclass(frozen=True)
class MigSlice:
    """A slice of a GPU. Power and energy exist for the whole GPU only."""

    uuid: str
    share: float
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None


@dataclass(frozen=True)
class GpuReading:
    """One reading of one GPU; None is what the GPU does not report."""

    index: int
    uuid: str
    name: str = ""
    minor: int | None = None
    bus_id: str = ""
    driver: str = ""
    lost: bool = False
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    clocks_hertz: dict[str, int] = field(default_factory=dict)
    throttle: frozenset[str] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_send: int | None = None
    pcie_receive: int | None = None
    nvlink_send_bytes: int | None = None
    nvlink_receive_bytes: int | None = None
    mig: bool = False
    slices: tuple[MigSlice, ...] = ()
    processes: tuple[GpuProcess, ...] = ()

    @property
    def is_virtual(self) -> bool:
        return self.name.startswith("Virtual")

    @property
    def place(self) -> int:
        """Its position in Slurm's order, which follows the minor numbers."""
        return self.minor if self.minor is not None else self.index


@dataclass(frozen=True)
class GpuEnergy:
    """The energy counter of a GPU that has one."""

    index: int
    uuid: str
    mj: int


def with_absent(
    previous: Iterable[GpuReading], answering: Iterable[GpuReading]
) -> list[GpuReading]:
    """`answering`, and those that do not answer now, as they were last read.

    A GPU that fell off the bus keeps its place and its slices, because Slurm still counts it. Of
    one that answers, the new reading counts, however it was sliced before.
    """
    by_uuid = {gpu.uuid: gpu for gpu in previous}
    now = {gpu.uuid: by_uuid.get(gpu.uuid, gpu) if gpu.lost else gpu for gpu in answering}
    used_places = {gpu.place for gpu in now.values()}
    absent = [g for uuid, g in by_uuid.items() if uuid not in now and g.place not in used_places]
    return [*now.values(), *absent]


def slots(gpus: Iterable[GpuReading]) -> list[GpuSlot]:
    """The slots in the order of Slurm's index: by minor number, slices one by one."""
    slots = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.place):
        if gpu.mig and gpu.slices:
            slots += [
                GpuSlot(mig_slice.uuid, gpu.uuid, mig_slice.share) for mig_slice in gpu.slices
            ]
        else:
            slots.append(GpuSlot(gpu.uuid, gpu.uuid))
    return slots


class GpuSource(Protocol):
    """Where GPUs are read from: NVML, or a replay."""

    xids: dict[tuple[str, int], int]
    """Driver errors so far, by UUID and number."""

    def read(self) -> list[GpuReading]: ...
    def energy_counters(self) -> list[GpuEnergy]: ...
