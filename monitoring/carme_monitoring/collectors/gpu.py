"""GPUs: all their values, their energy counters, and their activity between collections."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from carme.bursts import Bursts
from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector, CollectorContext, Stage
from carme_monitoring.gpus import (
    THROTTLE_REASONS,
    GpuEnergy,
    GpuReading,
    slots,
    with_absent,
)
from carme_monitoring.metrics import GPU, Samples, metric_group
from carme_monitoring.sampler import GpuActivity

METRICS = metric_group(
    "GPU",
    ("gpu_info", "info", "gpu uuid name minor slurm_index bus_id driver virtual",
     "A GPU: NVML's index, minor number and Slurm's index are three different things."),
    ("gpu_lost", "gauge", GPU, "1 while the GPU does not answer."),
    ("gpu_utilisation_ratio", "gauge", GPU, "Time with a kernel running, 0 to 1."),
    ("gpu_memory_utilisation_ratio", "gauge", GPU, "Time with memory being read or written."),
    ("gpu_memory_total_bytes", "gauge", GPU, "Memory of the GPU."),
    ("gpu_memory_used_bytes", "gauge", GPU, "Memory in use by processes."),
    ("gpu_memory_reserved_bytes", "gauge", GPU, "Memory kept by driver and firmware."),
    ("gpu_power_watts", "gauge", GPU, "Power of the whole GPU, also when it is sliced."),
    ("gpu_power_limit_watts", "gauge", GPU, "Enforced limit."),
    ("gpu_temperature_celsius", "gauge", GPU, "Temperature of the chip."),
    ("gpu_clock_hertz", "gauge", "gpu uuid clock", "Clocks: graphics, sm, memory, video."),
    ("gpu_throttle_active", "gauge", "gpu uuid reason", "1 while this reason slows the GPU."),
    ("gpu_ecc_errors_total", "counter", "gpu uuid kind", "Memory errors over its lifetime."),
    ("gpu_xid_errors_total", "counter", "gpu uuid xid", "XID errors since the exporter started."),
    ("gpu_pcie_bytes_per_second", "gauge", "gpu uuid direction", "Traffic on the bus."),
    ("gpu_nvlink_bytes_total", "counter", "gpu uuid direction", "Traffic to other GPUs."),
    ("gpu_processes", "gauge", GPU, "Processes that compute on it."),
    ("gpu_mig_enabled", "gauge", GPU, "1 when the GPU is sliced."),
    ("gpu_mig_share_ratio", "gauge", "gpu uuid mig", "The slice's part of the GPU."),
    ("gpu_mig_memory_total_bytes", "gauge", "gpu uuid mig", "Memory of the slice."),
    ("gpu_mig_memory_used_bytes", "gauge", "gpu uuid mig", "Memory of the slice in use."),
)  # fmt: skip

BURST_METRICS = metric_group(
    "Bursts",
    ("job_burst_duration_seconds", "gauge", "jobid node signal",
     "Mean length of a burst; signals gpu, gpu_memory, send, receive."),
    ("job_burst_pause_seconds", "gauge", "jobid node signal", "Mean time between bursts."),
    ("job_burst_amount", "gauge", "jobid node signal",
     "Mean level in a burst: utilisation (0 to 1), bytes held, bytes per second."),
)  # fmt: skip


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of the node, and what runs on them."""

    gpus: list[GpuReading]
    installed: list[GpuReading]
    """With those that do not answer now, as they were last read."""
    xids: dict[tuple[str, int], int] = field(default_factory=dict)
    """Driver errors by UUID and number."""
    cgroup_of: dict[int, str] = field(default_factory=dict)
    """The cgroups of each process on a GPU, as /proc/PID/cgroup has them."""


class GpuCollector(Collector[NodeGpus]):
    """All values of the GPUs."""

    name, metrics, requires = "gpu", METRICS, "gpus"

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._latest = NodeGpus([], [])

    def read(self) -> NodeGpus:
        source, proc = self.context.gpus, self.context.roots.proc
        if source is None:
            return self._latest
        gpus = source.read()
        pids = {process.pid for gpu in gpus for process in gpu.processes}
        cgroup_of = {pid: kernel_files.text(proc / str(pid) / "cgroup") or "" for pid in pids}
        installed = with_absent(self._latest.installed, gpus)
        self._latest = NodeGpus(gpus, installed, dict(source.xids), cgroup_of)
        return self._latest

    def add_samples(self, out: Samples, reading: NodeGpus) -> None:
        add_gpu_samples(out, reading.gpus, reading.installed)
        index_of = {gpu.uuid: str(gpu.index) for gpu in reading.gpus}
        for (uuid, xid), count in reading.xids.items():
            key = (index_of.get(uuid, ""), uuid, str(xid))
            out.add("carme_gpu_xid_errors_total", key, count)

    def add_failure(self, out: Samples) -> None:
        """GPUs are shown as they were last read: jobs still hold them."""
        self.add_samples(out, self._latest)


class GpuEnergyCollector(Collector[list[GpuEnergy]]):
    """The energy counters alone: quick enough for the start and end of a job."""

    name, requires = "gpu", "gpus"
    metrics = metric_group(
        "GPU",
        ("gpu_energy_joules_total", "counter", GPU, "Energy by the GPU's own counter."),
    )
    stage, order = Stage.COUNTERS, 1

    def read(self) -> list[GpuEnergy]:
        return self.context.gpus.energy_counters() if self.context.gpus else []

    def add_samples(self, out: Samples, counters: list[GpuEnergy]) -> None:
        for counter in counters:
            key = (str(counter.index), counter.uuid)
            out.add("carme_gpu_energy_joules_total", key, counter.mj / 1000)


class GpuActivityCollector(Collector[dict[str, GpuActivity]]):
    """Each GPU's activity since the last read, by the sampler."""

    name, requires = "gpu", "sampler"
    stage, order = Stage.CHARGED, 6

    def read(self) -> dict[str, GpuActivity]:
        return self.context.sampler.drain() if self.context.sampler else {}


class BurstCollector(Collector[dict[int, dict[str, Bursts]]]):
    """The bursts of profiled jobs by signal, as the sampler has seen them so far."""

    name, metrics, requires = "gpu", BURST_METRICS, "sampler"

    def read(self) -> dict[int, dict[str, Bursts]]:
        return self.context.sampler.figures() if self.context.sampler else {}

    def add_samples(self, out: Samples, bursts_of: dict[int, dict[str, Bursts]]) -> None:
        for jobid, signals in bursts_of.items():
            for signal, bursts in signals.items():
                key = (str(jobid), self.context.node, signal)
                out.add("carme_job_burst_duration_seconds", key, bursts.burst_seconds)
                out.add("carme_job_burst_pause_seconds", key, bursts.idle_seconds)
                out.add("carme_job_burst_amount", key, bursts.burst_amount)


def add_gpu_samples(
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
