"""Jobs on the node: the GPUs they hold (the prolog's records) and what they use (cgroups)."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from carme.node.cgroups import JobCgroup, find_jobs, jobid_of
from carme.node.gpu_allocations import AllocationReader, GpuAllocation
from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector, CollectorContext, Stage
from carme_monitoring.metrics import JOB, Samples, metric_group

_UNLIMITED = 2**60
"""v1 writes no limit as a number near 2**63."""
_RESOURCES = ("cpu", "memory", "io")
METRICS = metric_group(
    "Use of the node by jobs",
    ("job_cpu_seconds_total", "counter", "jobid node mode", "CPU time it used."),
    ("job_memory_used_bytes", "gauge", JOB, "Memory of its processes."),
    ("job_memory_peak_bytes", "gauge", JOB, "Peak memory."),
    ("job_memory_limit_bytes", "gauge", JOB, "Memory requested on this node."),
    ("job_oom_kills_total", "counter", JOB, "Processes killed because memory ran out."),
    ("job_io_bytes_total", "counter", "jobid node direction", "Bytes to and from disks."),
    ("job_pressure_seconds_total", "counter", "jobid node resource kind",
     "Time some or all of its processes waited for a resource (cgroup v2)."),
    ("job_processes", "gauge", JOB, "Its processes."),
)  # fmt: skip


@dataclass(frozen=True)
class JobUsage:
    """A job's use of the node; None is what its cgroup does not report."""

    jobid: int
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    cpus: int | None = None
    """From its cpuset, where cores are constrained."""
    memory_bytes: int | None = None
    """Resident memory, without the page cache, which is the kernel's to take back."""
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    pressure_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    processes: int | None = None
    devices: frozenset[int] | None = None
    """Minor numbers of the GPUs it may open, where the cgroup lists them."""
    sluid: str = ""
    """The name of its cgroup, where Slurm names cgroups by SLUID."""


class JobCgroups:
    """Reads every job's cgroup."""

    def __init__(
        self,
        node: str,
        cgroup: Path = Path("/sys/fs/cgroup"),
        proc: Path = Path("/proc"),
        ticks_per_second: int = 100,
    ) -> None:
        self._node, self._root, self._proc, self._ticks = node, cgroup, proc, ticks_per_second
        self._sluids: dict[str, int] = {}
        """The jobs whose folders are named by SLUID."""

    def read(self) -> dict[int, JobUsage]:
        """Use by job. A job whose folder disappears meanwhile has what was read until then."""
        uses = {}
        jobs = find_jobs(self._root, self._node)
        self._sluids = {j.sluid: self._sluids[j.sluid] for j in jobs if j.sluid in self._sluids}
        for job in jobs:
            jobid = self._jobid(job)
            if jobid is not None:
                use = read_v2(jobid, job) if job.is_v2 else read_v1(jobid, job, self._ticks)
                uses[jobid] = replace(use, sluid=job.sluid) if job.sluid else use
        return uses

    def _jobid(self, job: JobCgroup) -> int | None:
        if job.jobid is not None:
            return job.jobid
        if job.sluid not in self._sluids:
            jobid = jobid_of(job, self._proc)
            if jobid is None:
                return None
            self._sluids[job.sluid] = jobid
        return self._sluids[job.sluid]


def read_v1(jobid: int, job: JobCgroup, ticks: int) -> JobUsage:
    """A job's use by cgroup v1, which has a folder for each controller."""
    cpu, memory, cpuset = (job.path(name) for name in ("cpuacct", "memory", "cpuset"))
    use: dict[str, int | float | None] = {}
    if cpu:
        total = kernel_files.number(cpu / "cpuacct.usage")
        use["cpu_seconds"] = None if total is None else total / 1e9
        stat = kernel_files.table(cpu / "cpuacct.stat")
        use["cpu_user_seconds"] = stat["user"] / ticks if "user" in stat else None
        use["cpu_system_seconds"] = stat["system"] / ticks if "system" in stat else None
    if memory:
        stat = kernel_files.table(memory / "memory.stat")
        use["memory_bytes"] = stat.get("total_rss")
        use["memory_peak_bytes"] = kernel_files.number(memory / "memory.max_usage_in_bytes")
        use["memory_limit_bytes"] = _limit(kernel_files.number(memory / "memory.limit_in_bytes"))
        use["oom_kills"] = kernel_files.table(memory / "memory.oom_control").get("oom_kill")
    read_bytes, write_bytes = _blkio(job)
    return JobUsage(
        jobid,
        **use,  # type: ignore[arg-type]
        cpus=cpu_count(kernel_files.stripped_text(cpuset / "cpuset.cpus")) if cpuset else None,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        processes=_processes(job),
        devices=_devices(job),
    )


def read_v2(jobid: int, job: JobCgroup) -> JobUsage:
    """A job's use by cgroup v2, which has one folder."""
    top = job.paths[""]
    cpu, memory = kernel_files.table(top / "cpu.stat"), kernel_files.table(top / "memory.stat")
    events = kernel_files.table(top / "memory.events")
    read_bytes, write_bytes = _io_stat(kernel_files.text(top / "io.stat"))
    return JobUsage(
        jobid,
        cpu_seconds=_micro(cpu.get("usage_usec")),
        cpu_user_seconds=_micro(cpu.get("user_usec")),
        cpu_system_seconds=_micro(cpu.get("system_usec")),
        cpus=cpu_count(kernel_files.stripped_text(top / "cpuset.cpus")),
        memory_bytes=memory.get("anon"),
        memory_peak_bytes=kernel_files.number(top / "memory.peak"),
        memory_limit_bytes=_limit(kernel_files.number(top / "memory.max")),
        oom_kills=events.get("oom_kill"),
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        pressure_seconds=_pressure(top),
        processes=_processes(job),
    )


def cpu_count(ranges: str) -> int | None:
    """How many CPUs `0-3,8` names; None for an empty or broken list."""
    count = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        low, high = kernel_files.parse_integer(first), kernel_files.parse_integer(last or first)
        if low is None or high is None or not 0 <= high - low < 65536:
            return None
        count += high - low + 1
    return count or None


class CgroupCollector(Collector[dict[int, JobUsage]]):
    """What the jobs of the node use."""

    name, metrics = "cgroup", METRICS
    stage, order = Stage.CHARGED, 2

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        roots, ticks = context.roots, os.sysconf("SC_CLK_TCK")
        self._cgroups = JobCgroups(context.node, roots.cgroup, roots.proc, ticks)

    def read(self) -> dict[int, JobUsage]:
        return self._cgroups.read()

    def add_samples(self, out: Samples, uses: dict[int, JobUsage]) -> None:
        for jobid, use in uses.items():
            key = (str(jobid), self.context.node)
            for mode, seconds in (
                ("user", use.cpu_user_seconds),
                ("system", use.cpu_system_seconds),
            ):
                out.add("carme_job_cpu_seconds_total", (*key, mode), seconds)
            if use.cpu_user_seconds is None:
                out.add("carme_job_cpu_seconds_total", (*key, "all"), use.cpu_seconds)
            out.add("carme_job_memory_used_bytes", key, use.memory_bytes)
            out.add("carme_job_memory_peak_bytes", key, use.memory_peak_bytes)
            out.add("carme_job_memory_limit_bytes", key, use.memory_limit_bytes)
            out.add("carme_job_oom_kills_total", key, use.oom_kills)
            out.add("carme_job_io_bytes_total", (*key, "read"), use.read_bytes)
            out.add("carme_job_io_bytes_total", (*key, "write"), use.write_bytes)
            for (resource, kind), seconds in use.pressure_seconds.items():
                out.add("carme_job_pressure_seconds_total", (*key, resource, kind), seconds)
            out.add("carme_job_processes", key, use.processes)


@dataclass(frozen=True)
class AllocationRecords:
    """The prolog's records, and how many could not be read."""

    allocations: list[GpuAllocation]
    broken: int


class AllocationCollector(Collector[AllocationRecords]):
    """The records of the jobs on this node."""

    name = "jobs"
    metrics = metric_group(
        "GPU allocations",
        ("jobs_broken_records", "gauge", "", "GPU allocation records that could not be read."),
    )
    stage, order = Stage.CHARGED, 5

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._reader = AllocationReader(context.config.run, context.node, context.boot_id)

    def read(self) -> AllocationRecords:
        return AllocationRecords(self._reader.read(force=True), self._reader.broken)

    def add_samples(self, out: Samples, records: AllocationRecords) -> None:
        out.add("carme_jobs_broken_records", (), records.broken)


def _limit(value: int | None) -> int | None:
    return value if value is not None and 0 < value < _UNLIMITED else None


def _micro(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def _blkio(job: JobCgroup) -> tuple[int | None, int | None]:
    top = job.path("blkio")
    if top is None:
        return None, None
    sums: dict[str, int] = {}
    for line in (
        kernel_files.text(top / "blkio.throttle.io_service_bytes_recursive") or ""
    ).splitlines():
        words = line.split()
        if len(words) == 3 and (value := kernel_files.parse_integer(words[2])) is not None:
            sums[words[1]] = sums.get(words[1], 0) + value
    return sums.get("Read"), sums.get("Write")


def _io_stat(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    sums = {"rbytes": 0, "wbytes": 0}
    for pair in text.split():
        name, _, value = pair.partition("=")
        if name in sums:
            sums[name] += kernel_files.parse_integer(value) or 0
    return sums["rbytes"], sums["wbytes"]


def _pressure(top: Path) -> dict[tuple[str, str], float]:
    seconds = {}
    for resource in _RESOURCES:
        for line in (kernel_files.text(top / f"{resource}.pressure") or "").splitlines():
            kind, _, rest = line.partition(" ")
            total = (
                kernel_files.parse_integer(rest.rpartition("total=")[2])
                if "total=" in rest
                else None
            )
            if kind in ("some", "full") and total is not None:
                seconds[resource, kind] = total / 1e6
    return seconds


def _processes(job: JobCgroup) -> int | None:
    top = job.path("pids")
    return kernel_files.number(top / "pids.current") if top else None


def _devices(job: JobCgroup) -> frozenset[int] | None:
    """Minors of /dev/nvidiaN in a v1 allow list; None for a list that allows all."""
    top = job.path("devices")
    text = kernel_files.text(top / "devices.list") if top else None
    if not text or text.startswith("a "):
        return None
    minors = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "c" and words[1].startswith("195:"):
            minor = kernel_files.parse_integer(words[1].partition(":")[2])
            if minor is not None and minor < 250:  # 254 and 255 are the control devices
                minors.add(minor)
    return frozenset(minors)
