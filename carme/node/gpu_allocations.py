"""Which job holds which GPUs on a node: the record that Slurm's prolog and epilog write.

`carme.node.hook` writes it; the exporter and the virtual GPUs read it and are notified of changes
over a unix socket. Slurm counts a node's GPUs from 0 in the order of gres.conf; `gpus` holds these
indices.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from carme.node import hook


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Instant(_Model):
    """A point in time: wall clock, and nanoseconds since boot."""

    time_ns: int
    boot_ns: int


class CounterReading(Instant):
    """Energy counters as the hook read them, when no exporter answered it."""

    nvml_mj: dict[str, int] = Field(default_factory=dict)
    rapl_uj: dict[str, int] = Field(default_factory=dict)


class GpuAllocation(_Model):
    """A job on a node, from its prolog to its epilog."""

    node: str
    jobid: Annotated[int, Field(gt=0)]
    restart: int = 0
    uid: int = -1
    user: str = ""
    account: str = ""
    partition: str = ""
    sluid: str = ""
    gpus: tuple[int, ...] = ()
    cpus: int | None = None
    profile: bool = False
    boot_id: str = ""
    start: Instant | None = None
    end: Instant | None = None
    start_reading: CounterReading | None = None
    end_reading: CounterReading | None = None

    @property
    def is_over(self) -> bool:
        return self.end is not None


_RecordCache = dict[str, tuple[tuple[int, int, int], GpuAllocation | None]]
"""File name to inode, time and size of the file, and its record; None if that is broken."""


def read(
    folder: Path, node: str, boot_id: str | None = None, cache: _RecordCache | None = None
) -> tuple[list[GpuAllocation], int]:
    """The node's records, oldest start first, and the number of files that cannot be read.

    Records of another boot are left out: their jobs ended with it. `cache` keeps records from
    one call to the next: they are replaced as a whole, so an unchanged file is not parsed again.
    """
    boot = hook.boot_id() if boot_id is None else boot_id
    previous, current = cache or {}, {}
    try:
        with os.scandir(folder / "jobs") as entries:
            files = [e for e in entries if e.name.startswith(f"{node}.")]
    except OSError:
        return [], 0
    for entry in files:
        if not entry.name.endswith(".json"):
            continue
        version, record = (0, 0, 0), None
        try:
            stat = entry.stat()
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if entry.name in previous and previous[entry.name][0] == version:
                record = previous[entry.name][1]
            else:
                record = GpuAllocation.model_validate_json(Path(entry.path).read_bytes())
        except FileNotFoundError:
            continue
        except OSError:
            version = (0, 0, 0)  # try again next time
        except ValidationError:
            pass
        current[entry.name] = (version, record)
    if cache is not None:
        cache.clear()
        cache.update(current)
    records = [record for _, record in current.values()]
    allocations = [r for r in records if r and r.node == node and r.boot_id == boot]
    allocations.sort(key=lambda record: record.start.boot_ns if record.start else 0)
    return allocations, sum(record is None for record in records)


class AllocationReader:
    """The node's records, read again when the folder has changed, and at least once a second."""

    def __init__(
        self,
        folder: Path,
        node: str,
        boot_id: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._node, self._boot, self._now = folder, node, boot_id, now
        self._folder_mtime_ns, self._read_at = -1, -1e9
        self._allocations: list[GpuAllocation] = []
        self._cache: _RecordCache = {}
        self.broken = 0

    def read(self, force: bool = False) -> list[GpuAllocation]:
        """As `read`; `force` after a notification. Reads once a second in any case, because two
        changes within one tick of the kernel's clock leave the same modification time."""
        try:
            mtime_ns = (self._folder / "jobs").stat().st_mtime_ns
        except OSError:
            mtime_ns = -1
        if force or mtime_ns != self._folder_mtime_ns or self._now() - self._read_at > 1:
            self._folder_mtime_ns, self._read_at = mtime_ns, self._now()
            self._allocations, self.broken = read(self._folder, self._node, self._boot, self._cache)
        return self._allocations
