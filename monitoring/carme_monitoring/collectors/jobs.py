"""Which job is on this node, from when to when, and which GPUs it holds.

The prolog's record says so. Processes on the GPUs and the device cgroup must agree with it;
where they do not, that is counted. A site without the prolog still gets its jobs from their
cgroups, and GPUs from what their processes use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.holders import Holding, Reading
from carme_monitoring import files
from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.energy.shares import Presence, Slot
from carme_monitoring.gpus import Gpu
from carme_monitoring.samples import Samples, Tally

_JOB = re.compile(r"/job_(\d+)(?:/|$)")


@dataclass
class Entry:
    """A job as the exporter knows it."""

    jobid: int
    start_ns: int
    end_ns: int | None = None
    user: str = ""
    account: str = ""
    partition: str = ""
    uid: int = -1
    gpus: tuple[int, ...] = ()
    """Slurm's indices."""
    cpus: float = 0.0
    memory_bytes: float = 0.0
    profile: bool = False
    has_record: bool = True
    start_time: float = 0.0
    end_time: float | None = None

    def presence(self, slots: Sequence[Slot]) -> Presence:
        """The job for the ledger."""
        held = tuple(slots[index].name for index in self.gpus if index < len(slots))
        return Presence(self.jobid, self.start_ns, self.end_ns, held, self.cpus, self.memory_bytes)


@dataclass(frozen=True)
class Change:
    """A job came or went at `at_ns`; `reading` is what the hook read then, if it did."""

    at_ns: int
    is_start: bool
    holding: Holding
    reading: Reading | None


class JobTable:
    """The node's jobs, including those that ended a while ago."""

    def __init__(self, keep_seconds: float = 300) -> None:
        self.entries: dict[int, Entry] = {}
        self._keep_ns = round(keep_seconds * 1e9)

    def changes(self, holdings: Iterable[Holding], since_ns: int) -> list[Change]:
        """What the records say happened that the table does not know yet, in order."""
        found = []
        for holding in holdings:
            start, end = holding.start, holding.end
            entry = self.entries.get(holding.jobid)
            if start is None or (end and end.boot_ns + self._keep_ns < since_ns and not entry):
                continue  # long gone before this exporter ever ran
            is_new = (
                entry is None
                or not entry.has_record
                or (entry.end_ns is not None and start.boot_ns >= entry.end_ns)  # requeued
            )
            if is_new:
                found.append(Change(start.boot_ns, True, holding, holding.start_reading))
            is_open = entry is not None and entry.end_ns is None
            # A requeued job has an ended record of its earlier run beside the open one.
            if end and (is_new or (is_open and entry and end.boot_ns >= entry.start_ns)):
                found.append(Change(end.boot_ns, False, holding, holding.end_reading))
        return sorted(found, key=lambda change: (change.at_ns, change.is_start))

    def apply(self, change: Change, at_ns: int) -> None:
        """Let the job come or go at `at_ns`."""
        holding = change.holding
        if not change.is_start:
            entry = self.entries.get(holding.jobid)
            if entry and entry.end_ns is None:
                entry.end_ns = max(at_ns, entry.start_ns)
                entry.end_time = holding.end.time_ns / 1e9 if holding.end else None
            return
        self.entries[holding.jobid] = Entry(
            jobid=holding.jobid,
            start_ns=at_ns,
            user=holding.user,
            account=holding.account,
            partition=holding.partition,
            uid=holding.uid,
            gpus=holding.gpus,
            cpus=float(holding.cpus or 0),
            profile=holding.profile,
            start_time=holding.start.time_ns / 1e9 if holding.start else 0.0,
        )

    def see_uses(self, uses: Mapping[int, JobUse], at_ns: int, time_s: float) -> None:
        """Take processors and memory from the cgroups, and jobs that have no record."""
        for jobid, use in uses.items():
            entry = self.entries.get(jobid)
            if entry is None:
                entry = Entry(jobid, at_ns, has_record=False, start_time=time_s)
                self.entries[jobid] = entry
            entry.cpus = entry.cpus or float(use.cpus or 0)
            entry.memory_bytes = float(use.memory_limit_bytes or use.memory_bytes or 0)
        for entry in self.entries.values():
            if not entry.has_record and entry.end_ns is None and entry.jobid not in uses:
                entry.end_ns, entry.end_time = at_ns, time_s

    def expired(self, at_ns: int) -> list[int]:
        """Jobs whose series end now."""
        return [
            jobid
            for jobid, entry in self.entries.items()
            if entry.end_ns is not None and at_ns - entry.end_ns > self._keep_ns
        ]

    def live(self) -> list[Entry]:
        """Jobs that are here."""
        return [entry for entry in self.entries.values() if entry.end_ns is None]

    def save(self) -> list[dict[str, Any]]:
        return [vars(entry) for entry in self.entries.values()]

    def restore(self, saved: Iterable[Mapping[str, Any]]) -> None:
        for row in saved:
            entry = Entry(**{**row, "gpus": tuple(row["gpus"])})
            self.entries[entry.jobid] = entry


def job_of_pid(pid: int, proc: Path) -> int | None:
    """The job whose cgroup the process is in."""
    match = _JOB.search(files.text(proc / str(pid) / "cgroup") or "")
    return int(match[1]) if match else None


class CrossCheck:
    """Compares the records with what runs on the GPUs; each conflict is counted when it appears."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.conflicts = Tally()
        self._seen: set[tuple[str, str, int]] = set()

    def check(
        self,
        table: JobTable,
        gpus: Sequence[Gpu],
        slots: Sequence[Slot],
        uses: Mapping[int, JobUse],
    ) -> dict[tuple[str, int], float]:
        """SM time by (slot, job) of what runs now."""
        live = {entry.jobid: entry for entry in table.live()}
        now: set[tuple[str, str, int]] = set()
        sm: dict[tuple[str, int], float] = {}
        by_gpu: dict[str, list[tuple[int, Slot]]] = {}
        for index, slot in enumerate(slots):
            by_gpu.setdefault(slot.gpu, []).append((index, slot))
        self._check_claims(live, slots, uses, now)
        for gpu in gpus:
            mine = by_gpu.get(gpu.uuid, [])
            indices = {index for index, _ in mine}
            for process in gpu.processes:
                jobid = job_of_pid(process.pid, self._proc)
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
        live: dict[int, Entry],
        slots: Sequence[Slot],
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
                        entry.end_ns = newest.start_ns
                        live.pop(entry.jobid, None)

    def _check_devices(
        self,
        live: Iterable[Entry],
        gpus: Sequence[Gpu],
        slots: Sequence[Slot],
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


def add_samples(
    out: Samples, node: str, table: JobTable, slots: Sequence[Slot], gpus: Sequence[Gpu]
) -> None:
    """Who is here, and who holds what."""
    index_of = {gpu.uuid: str(gpu.index) for gpu in gpus}
    for entry in table.entries.values():
        key = (str(entry.jobid), node)
        out.add("carme_job_info", (*key, entry.user, entry.account, entry.partition), 1)
        out.add("carme_job_start_timestamp_seconds", key, round(entry.start_time, 3))
        if entry.end_time is not None:
            out.add("carme_job_end_timestamp_seconds", key, round(entry.end_time, 3))
        out.add("carme_job_cpus", key, entry.cpus or None)
        if entry.end_ns is None:
            for index in entry.gpus:
                if index < len(slots):
                    slot = slots[index]
                    out.add("carme_job_gpu_held", (*key, index_of.get(slot.gpu, ""), slot.name), 1)
