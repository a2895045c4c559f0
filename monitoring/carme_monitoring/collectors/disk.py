"""The node's local file systems."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector
from carme_monitoring.metrics import Samples, metric_group

_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs"}
"""Network file systems are left out: reading them may hang."""
_ROOT_ONLY = {"overlay"}
"""The root of a node that is a container; elsewhere it belongs to other containers."""
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MAX_DISKS = 16


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
    for point in mountpoints(kernel_files.text(proc / "self/mounts") or ""):
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
