"""The node's processors and memory, through psutil, and its local file systems."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from carme_monitoring import files
from carme_monitoring.collector import Collector, Stage
from carme_monitoring.metrics import Samples, metric_group

_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")
"""The kernel has these in `user` and `nice` already."""
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs"}
"""Network file systems are left out: reading them may hang."""
_ROOT_ONLY = {"overlay"}
"""The root of a node that is a container; elsewhere it belongs to other containers."""
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MAX_DISKS = 16
METRICS = metric_group(
    "Node",
    ("node_cpus", "gauge", "", "Processors of the node."),
    ("node_cpu_seconds_total", "counter", "mode", "Processor time by mode."),
    ("node_memory_total_bytes", "gauge", "", "Memory of the node."),
    ("node_memory_available_bytes", "gauge", "", "Memory that new work could have."),
    ("node_load_ratio", "gauge", "", "Runnable processes over a minute per processor."),
    ("node_boot_timestamp_seconds", "gauge", "", "When the node booted."),
)  # fmt: skip


@dataclass(frozen=True)
class Host:
    """A reading of the node."""

    cpus: int
    cpu_seconds: dict[str, float]
    memory_total_bytes: int
    memory_available_bytes: int
    load: float | None
    boot_timestamp: float | None

    @property
    def busy_seconds(self) -> float:
        """Processor time of everything that ran since boot."""
        return sum(seconds for mode, seconds in self.cpu_seconds.items() if mode not in _IDLE)


def read_host(proc: Path = Path("/proc")) -> Host:
    """The node as psutil sees it below `proc`."""
    psutil.PROCFS_PATH = str(proc)
    times = psutil.cpu_times()._asdict()
    memory = psutil.virtual_memory()
    words = files.stripped_text(proc / "loadavg").split()
    try:
        load = float(words[0])
    except (IndexError, ValueError):
        load = None
    return Host(
        cpus=len(psutil.cpu_times(percpu=True)) or 1,
        cpu_seconds={mode: value for mode, value in times.items() if mode not in _COUNTED_TWICE},
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        load=load,
        boot_timestamp=psutil.boot_time(),
    )


class HostCollector(Collector[Host]):
    """Processors and memory of the node."""

    name, metrics = "host", METRICS
    stage, order = Stage.CHARGED, 3

    def read(self) -> Host:
        return read_host(self.context.roots.proc)

    def add_samples(self, out: Samples, host: Host) -> None:
        out.add("carme_node_cpus", (), host.cpus)
        for mode, seconds in host.cpu_seconds.items():
            out.add("carme_node_cpu_seconds_total", (mode,), round(seconds, 2))
        out.add("carme_node_memory_total_bytes", (), host.memory_total_bytes)
        out.add("carme_node_memory_available_bytes", (), host.memory_available_bytes)
        if host.load is not None:
            out.add("carme_node_load_ratio", (), round(host.load / host.cpus, 4))
        out.add("carme_node_boot_timestamp_seconds", (), host.boot_timestamp)


@dataclass(frozen=True)
class Disk:
    """A file system."""

    mountpoint: str
    size_bytes: int
    free_bytes: int
    files_free_ratio: float | None


def mountpoints(mounts: str) -> list[str]:
    """Where local file systems are mounted, each once, at its shortest path."""
    mounted: dict[str, tuple[str, str]] = {}  # what was mounted last at a place hides the rest
    for words in (line.split() for line in mounts.splitlines()):
        if len(words) >= 3:
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[1])
            mounted[point] = (words[0], words[2])
    point_of: dict[str, str] = {}
    for point, (device, kind) in mounted.items():
        if kind not in _LOCAL and not (kind in _ROOT_ONLY and point == "/"):
            continue
        if device not in point_of or len(point) < len(point_of[device]):
            point_of[device] = point
    return sorted(point_of.values())[:_MAX_DISKS]


def read_disks(
    proc: Path = Path("/proc"), statvfs: Callable[[str], os.statvfs_result] = os.statvfs
) -> list[Disk]:
    """Every local file system that answers."""
    disks = []
    for point in mountpoints(files.text(proc / "self/mounts") or ""):
        try:
            answer = statvfs(point)
        except OSError:  # not for this user to see
            continue
        ratio = answer.f_favail / answer.f_files if answer.f_files else None
        size, free = answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize
        disks.append(Disk(point, size, free, ratio))
    return disks


class DiskCollector(Collector[list[Disk]]):
    """Size and free space of the local file systems."""

    name = "disk"
    metrics = metric_group(
        "Node",
        ("disk_size_bytes", "gauge", "mountpoint", "Size of a local file system."),
        ("disk_free_bytes", "gauge", "mountpoint", "What users may still write there."),
        ("disk_files_free_ratio", "gauge", "mountpoint", "Part of its files (inodes) still free."),
    )  # fmt: skip
    modes = ("node", "controller")

    def read(self) -> list[Disk]:
        return read_disks(self.context.roots.proc)

    def add_samples(self, out: Samples, disks: list[Disk]) -> None:
        for disk in disks:
            key = (disk.mountpoint,)
            out.add("carme_disk_size_bytes", key, disk.size_bytes)
            out.add("carme_disk_free_bytes", key, disk.free_bytes)
            if disk.files_free_ratio is not None:
                out.add("carme_disk_files_free_ratio", key, round(disk.files_free_ratio, 4))
