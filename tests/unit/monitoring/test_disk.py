"""Local file systems."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from carme_monitoring.collector import CollectorContext
from carme_monitoring.collectors import disk
from carme_monitoring.metrics import Samples

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
/dev/sda1 /var/lib/jobs/7 ext4 rw 0 0
/dev/sdb1 /scratch\\040local xfs rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/sdc1 /hidden ext4 rw 0 0
tmpfs /hidden tmpfs ro 0 0
overlay /var/lib/containers/1 overlay rw 0 0
broken
"""


def test_each_local_file_system_once() -> None:
    assert disk.mountpoints(MOUNTS) == ["/", "/scratch local"]
    assert disk.mountpoints("overlay / overlay rw 0 0\n") == ["/"]
    assert disk.mountpoints("") == []


def test_how_full_they_are(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(MOUNTS)

    def statvfs(path: str) -> Any:
        if path != "/":
            raise PermissionError(13, "no")
        return SimpleNamespace(f_blocks=100, f_bavail=20, f_frsize=4096, f_files=50, f_favail=10)

    out = Samples()
    disk.DiskCollector(CollectorContext()).add_samples(out, disk.read_disks(tmp_path, statvfs))
    assert out.value("carme_disk_size_bytes", "/") == 409600
    assert out.value("carme_disk_free_bytes", "/") == 81920
    assert out.value("carme_disk_files_free_ratio", "/") == 0.2
    assert len(out) == 3
    assert disk.read_disks(tmp_path / "nowhere", os.statvfs) == []
