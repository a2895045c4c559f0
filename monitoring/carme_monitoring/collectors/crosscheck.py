"""Whether the records of who holds which GPU agree with what runs on the GPUs.

Processes and the device cgroup must agree with the prolog's record; where they do not, that is
counted. Where there is no record, a job's GPUs are those that its processes use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from carme.node.cgroups import SLUID
from carme_monitoring import files
from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.collectors.jobs import Entry, JobTable
from carme_monitoring.energy.shares import GpuSlot
from carme_monitoring.gpus import GpuReading
from carme_monitoring.samples import LabelledCounter

_JOB = re.compile(rf"/(?:job_(\d+)|({SLUID.pattern}))(?:/|$)", re.MULTILINE)


def job_of_pid(pid: int, proc: Path, sluids: Mapping[str, int]) -> int | None:
    """The job whose cgroup the process is in: by its number, or by the SLUID it is known by."""
    match = _JOB.search(files.text(proc / str(pid) / "cgroup") or "")
    if not match:
        return None
    return int(match[1]) if match[1] else sluids.get(match[2])


class CrossCheck:
    """Compares the records with what runs on the GPUs; each conflict is counted when it appears."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.conflicts = LabelledCounter()
        self._seen: set[tuple[str, str, int]] = set()

    def check(
        self,
        table: JobTable,
        gpus: Sequence[GpuReading],
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUse],
        sluids: Mapping[str, int],
    ) -> dict[tuple[str, int], float]:
        """SM time by (slot, job) of what runs now."""
        live = {entry.jobid: entry for entry in table.live()}
        now: set[tuple[str, str, int]] = set()
        sm: dict[tuple[str, int], float] = {}
        by_gpu: dict[str, list[tuple[int, GpuSlot]]] = {}
        for index, slot in enumerate(slots):
            by_gpu.setdefault(slot.gpu, []).append((index, slot))
        self._check_claims(table, live, slots, uses, now)
        for gpu in gpus:
            mine = by_gpu.get(gpu.uuid, [])
            indices = {index for index, _ in mine}
            for process in gpu.processes:
                jobid = job_of_pid(process.pid, self._proc, sluids)
                entry = live.get(jobid) if jobid is not None else None
                if jobid is None:
                    now.add(("process_outside_jobs", gpu.uuid, process.pid))
                elif entry and not entry.has_record and len(mine) == 1:
                    entry.gpus = tuple(sorted({*entry.gpus, mine[0][0]}))
                elif entry and entry.has_record and not indices & set(entry.gpus):
                    now.add(("process_on_foreign_gpu", gpu.uuid, jobid))
                if entry and len(mine) == 1:
                    key = (mine[0][1].name, entry.jobid)
                    sm[key] = sm.get(key, 0.0) + (process.sm_percent or 0.0)
        self._check_devices(live.values(), gpus, slots, uses, now)
        for reason, *_ in now - self._seen:
            self.conflicts.add((reason,))
        self._seen = now
        return sm

    def _check_claims(
        self,
        table: JobTable,
        live: dict[int, Entry],
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUse],
        now: set[tuple[str, str, int]],
    ) -> None:
        """Two jobs on one slot may share it, but one without a cgroup beside one with is over."""
        claimed: dict[int, list[Entry]] = {}
        for entry in live.values():
            for index in entry.gpus:
                claimed.setdefault(index, []).append(entry)
                if index >= len(slots) and slots:
                    now.add(("no_such_gpu", str(index), entry.jobid))
        for index, entries in claimed.items():
            if len(entries) > 1 and any(entry.jobid in uses for entry in entries):
                newest = max(entries, key=lambda entry: entry.start_ns)
                for entry in entries:
                    if entry is not newest and entry.jobid not in uses:
                        now.add(("stale_record", str(index), entry.jobid))
                        table.close(entry, newest.start_ns, newest.start_time)
                        live.pop(entry.jobid, None)

    def _check_devices(
        self,
        live: Iterable[Entry],
        gpus: Sequence[GpuReading],
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUse],
        now: set[tuple[str, str, int]],
    ) -> None:
        minors = {gpu.uuid: gpu.minor for gpu in gpus}
        for entry in live:
            allowed = uses[entry.jobid].devices if entry.jobid in uses else None
            if allowed is None or not entry.has_record:
                continue
            held = {minors.get(slots[index].gpu) for index in entry.gpus if index < len(slots)}
            if held - {None} != allowed:
                now.add(("device_cgroup", "", entry.jobid))
