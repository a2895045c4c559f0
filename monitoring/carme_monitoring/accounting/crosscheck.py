"""Compares the GPU allocation records with what runs on the GPUs.

Processes and the device cgroup must agree with the prolog's record; where they do not, that is
counted. Where there is no record, a job's GPUs are those that its processes use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from carme.node.cgroups import SLUID
from carme_monitoring.accounting.job_table import JobTable, NodeJob
from carme_monitoring.collectors.gpu import NodeGpus
from carme_monitoring.collectors.jobs import JobUsage
from carme_monitoring.energy.shares import GpuSlot
from carme_monitoring.gpus import GpuReading
from carme_monitoring.metrics import LabelledCounter

_JOB = re.compile(rf"/(?:job_(\d+)|({SLUID.pattern}))(?:/|$)", re.MULTILINE)
Conflict = tuple[str, str, int]
"""Reason, GPU, and job or process."""


def job_of_cgroup(cgroup: str, sluids: Mapping[str, int]) -> int | None:
    """The job of a process in `cgroup`, which names its number or its SLUID."""
    match = _JOB.search(cgroup)
    if not match:
        return None
    return int(match[1]) if match[1] else sluids.get(match[2])


class CrossCheck:
    """Compares the records with what runs on the GPUs; each conflict is counted when it appears."""

    def __init__(self) -> None:
        self.conflicts = LabelledCounter()
        self._previous: set[Conflict] = set()

    def check(
        self,
        table: JobTable,
        node_gpus: NodeGpus,
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUsage],
        sluids: Mapping[str, int],
    ) -> dict[tuple[str, int], float]:
        """SM time by (slot, job) of what runs now."""
        running = {job.jobid: job for job in table.running()}
        now: set[Conflict] = set()
        sm: dict[tuple[str, int], float] = {}
        by_gpu: dict[str, list[tuple[int, GpuSlot]]] = {}
        for index, slot in enumerate(slots):
            by_gpu.setdefault(slot.gpu, []).append((index, slot))
        self._check_claims(table, running, slots, uses, now)
        for gpu in node_gpus.gpus:
            own_slots = by_gpu.get(gpu.uuid, [])
            indices = {index for index, _ in own_slots}
            for process in gpu.processes:
                jobid = job_of_cgroup(node_gpus.cgroup_of.get(process.pid, ""), sluids)
                job = running.get(jobid) if jobid is not None else None
                if jobid is None:
                    now.add(("process_outside_jobs", gpu.uuid, process.pid))
                elif job and not job.has_record and len(own_slots) == 1:
                    job.gpus = tuple(sorted({*job.gpus, own_slots[0][0]}))
                elif job and job.has_record and not indices & set(job.gpus):
                    now.add(("process_on_foreign_gpu", gpu.uuid, jobid))
                if job and len(own_slots) == 1:
                    key = (own_slots[0][1].name, job.jobid)
                    sm[key] = sm.get(key, 0.0) + (process.sm_percent or 0.0)
        self._check_devices(running.values(), node_gpus.gpus, slots, uses, now)
        for reason, *_ in now - self._previous:
            self.conflicts.add((reason,))
        self._previous = now
        return sm

    def _check_claims(
        self,
        table: JobTable,
        running: dict[int, NodeJob],
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUsage],
        now: set[Conflict],
    ) -> None:
        """Two jobs may share a slot; one without a cgroup beside one that has one is over."""
        claimed: dict[int, list[NodeJob]] = {}
        for job in running.values():
            for index in job.gpus:
                claimed.setdefault(index, []).append(job)
                if index >= len(slots) and slots:
                    now.add(("no_such_gpu", str(index), job.jobid))
        for index, claimants in claimed.items():
            if len(claimants) > 1 and any(job.jobid in uses for job in claimants):
                newest = max(claimants, key=lambda job: job.start_ns)
                for job in claimants:
                    if job is not newest and job.jobid not in uses:
                        now.add(("stale_record", str(index), job.jobid))
                        table.close(job, newest.start_ns, newest.start_time)
                        running.pop(job.jobid, None)

    def _check_devices(
        self,
        running: Iterable[NodeJob],
        gpus: Sequence[GpuReading],
        slots: Sequence[GpuSlot],
        uses: Mapping[int, JobUsage],
        now: set[Conflict],
    ) -> None:
        minors = {gpu.uuid: gpu.minor for gpu in gpus}
        for job in running:
            allowed = uses[job.jobid].devices if job.jobid in uses else None
            if allowed is None or not job.has_record:
                continue
            held = {minors.get(slots[index].gpu) for index in job.gpus if index < len(slots)}
            if held - {None} != allowed:
                now.add(("device_cgroup", "", job.jobid))
