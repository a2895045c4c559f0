"""The node's CPUs and memory, through psutil."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector, Stage
from carme_monitoring.metrics import Samples, metric_group

_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")
"""The kernel has these in `user` and `nice` already."""
METRICS = metric_group(
    "Node",
    ("node_cpus", "gauge", "", "CPUs of the node."),
    ("node_cpu_seconds_total", "counter", "mode", "CPU time by mode."),
    ("node_memory_total_bytes", "gauge", "", "Memory of the node."),
    ("node_memory_available_bytes", "gauge", "", "Memory available without swapping."),
    ("node_load_ratio", "gauge", "", "One-minute load average per CPU."),
    ("node_boot_timestamp_seconds", "gauge", "", "When the node booted."),
)  # fmt: skip


@dataclass(frozen=True)
class HostReading:
    """A reading of the node."""

    cpus: int
    cpu_seconds: dict[str, float]
    memory_total_bytes: int
    memory_available_bytes: int
    load: float | None
    boot_timestamp: float | None

    @property
    def busy_seconds(self) -> float:
        """CPU time of everything that ran since boot."""
        return sum(seconds for mode, seconds in self.cpu_seconds.items() if mode not in _IDLE)


def read_host(proc: Path = Path("/proc")) -> HostReading:
    """The node as psutil sees it below `proc`."""
    psutil.PROCFS_PATH = str(proc)
    times = psutil.cpu_times()._asdict()
    memory = psutil.virtual_memory()
    words = kernel_files.stripped_text(proc / "loadavg").split()
    try:
        load = float(words[0])
    except (IndexError, ValueError):
        load = None
    return HostReading(
        cpus=len(psutil.cpu_times(percpu=True)) or 1,
        cpu_seconds={mode: value for mode, value in times.items() if mode not in _COUNTED_TWICE},
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        load=load,
        boot_timestamp=psutil.boot_time(),
    )


class HostCollector(Collector[HostReading]):
    """CPUs and memory of the node."""

    name, metrics = "host", METRICS
    stage, order = Stage.CHARGED, 3

    def read(self) -> HostReading:
        return read_host(self.context.roots.proc)

    def add_samples(self, out: Samples, host: HostReading) -> None:
        out.add("carme_node_cpus", (), host.cpus)
        for mode, seconds in host.cpu_seconds.items():
            out.add("carme_node_cpu_seconds_total", (mode,), round(seconds, 2))
        out.add("carme_node_memory_total_bytes", (), host.memory_total_bytes)
        out.add("carme_node_memory_available_bytes", (), host.memory_available_bytes)
        if host.load is not None:
            out.add("carme_node_load_ratio", (), round(host.load / host.cpus, 4))
        out.add("carme_node_boot_timestamp_seconds", (), host.boot_timestamp)
