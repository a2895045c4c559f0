"""GPUs as they were read, whoever read them, and their samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from carme_monitoring.energy.shares import GpuSlot
from carme_monitoring.samples import Samples

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
    """One reading of one GPU; None is what the card does not tell."""

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
    energy_mj: int | None = None
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
        """Where Slurm counts it: it goes by minor number."""
        return self.minor if self.minor is not None else self.index


def with_absent(known: Iterable[GpuReading], found: Iterable[GpuReading]) -> list[GpuReading]:
    """`found`, and as they were last known those that do not answer now.

    A GPU that fell off the bus keeps its place and its slices: Slurm counts on. One that answers
    is as it says it is, however it was sliced before.
    """
    before = {gpu.uuid: gpu for gpu in known}
    now = {gpu.uuid: before.get(gpu.uuid, gpu) if gpu.lost else gpu for gpu in found}
    taken = {gpu.place for gpu in now.values()}
    absent = [g for uuid, g in before.items() if uuid not in now and g.place not in taken]
    return [*now.values(), *absent]


def slots(gpus: Iterable[GpuReading]) -> list[GpuSlot]:
    """What Slurm hands out, in the order of its index: by minor number, slices one by one."""
    found = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.place):
        if gpu.mig and gpu.slices:
            found += [GpuSlot(part.uuid, gpu.uuid, part.share) for part in gpu.slices]
        else:
            found.append(GpuSlot(gpu.uuid, gpu.uuid))
    return found


def add_samples(
    out: Samples, gpus: Sequence[GpuReading], absent: Sequence[GpuReading] = ()
) -> None:
    """The samples of `gpus`; those that are absent keep their places in Slurm's count."""
    places = list(enumerate(slots(with_absent(absent, gpus))))
    first_slot = {slot.gpu: str(i) for i, slot in reversed(places)}
    for gpu in gpus:
        key = (str(gpu.index), gpu.uuid)
        minor = "" if gpu.minor is None else str(gpu.minor)
        is_virtual = "true" if gpu.is_virtual else "false"
        out.add("carme_gpu_info",
                (*key, gpu.name, minor, first_slot[gpu.uuid], gpu.bus_id, gpu.driver, is_virtual),
                1)  # fmt: skip
        out.add("carme_gpu_lost", key, int(gpu.lost))
        out.add("carme_gpu_utilisation_ratio", key, gpu.utilisation)
        out.add("carme_gpu_memory_utilisation_ratio", key, gpu.memory_utilisation)
        out.add("carme_gpu_memory_total_bytes", key, gpu.memory_total_bytes)
        out.add("carme_gpu_memory_used_bytes", key, gpu.memory_used_bytes)
        out.add("carme_gpu_memory_reserved_bytes", key, gpu.memory_reserved_bytes)
        out.add("carme_gpu_power_watts", key, gpu.power_watts)
        out.add("carme_gpu_power_limit_watts", key, gpu.power_limit_watts)
        if gpu.energy_mj is not None:
            out.add("carme_gpu_energy_joules_total", key, gpu.energy_mj / 1000)
        out.add("carme_gpu_temperature_celsius", key, gpu.temperature_celsius)
        for clock, hertz in gpu.clocks_hertz.items():
            out.add("carme_gpu_clock_hertz", (*key, clock), hertz)
        if gpu.throttle is not None:
            for reason in THROTTLE_REASONS.values():
                out.add("carme_gpu_throttle_active", (*key, reason), int(reason in gpu.throttle))
        out.add("carme_gpu_ecc_errors_total", (*key, "corrected"), gpu.ecc_corrected)
        out.add("carme_gpu_ecc_errors_total", (*key, "uncorrected"), gpu.ecc_uncorrected)
        out.add("carme_gpu_pcie_bytes_per_second", (*key, "send"), gpu.pcie_send)
        out.add("carme_gpu_pcie_bytes_per_second", (*key, "receive"), gpu.pcie_receive)
        out.add("carme_gpu_nvlink_bytes_total", (*key, "send"), gpu.nvlink_send_bytes)
        out.add("carme_gpu_nvlink_bytes_total", (*key, "receive"), gpu.nvlink_receive_bytes)
        if not gpu.lost:
            out.add("carme_gpu_processes", key, len(gpu.processes))
            out.add("carme_gpu_mig_enabled", key, int(gpu.mig))
        for part in gpu.slices:
            slice_key = (*key, part.uuid)
            out.add("carme_gpu_mig_share_ratio", slice_key, round(part.share, 4))
            out.add("carme_gpu_mig_memory_total_bytes", slice_key, part.memory_total_bytes)
            out.add("carme_gpu_mig_memory_used_bytes", slice_key, part.memory_used_bytes)
