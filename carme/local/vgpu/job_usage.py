"""What the processes of a job do, read from its cgroup: the work that a virtual GPU shows."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from carme.node.cgroups import JobCgroup, find_jobs, jobid_of, pids

_PROCESSES_EVERY_NS = 10**9
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """What the processes of a job did, as far as its cgroup tells."""

    cgroup: JobCgroup
    cpu_ns: int
    at_ns: int
    cores: float = 0.0
    """CPU use since the look before, in cores."""
    processes: list[tuple[int, int]] = field(default_factory=list)
    """Pid and resident bytes."""
    listed_ns: int = 0


class Follower:
    """CPU and memory use of the jobs that are followed on one node."""

    def __init__(self, node: str, cgroup: Path, proc: Path) -> None:
        self._node, self._cgroup, self._proc = node, cgroup, proc
        self._usage: dict[int, Usage] = {}

    def get(self, jobid: int) -> Usage | None:
        """What is known of a job since the last `look`."""
        return self._usage.get(jobid)

    def look(self, jobids: Iterable[int], now_ns: int) -> None:
        """Bring what is known of these jobs up to date, and forget all others."""
        wanted = set(jobids)
        self._usage = {jobid: usage for jobid, usage in self._usage.items() if jobid in wanted}
        if missing := wanted - self._usage.keys():
            for cgroup in find_jobs(self._cgroup, self._node):
                jobid = jobid_of(cgroup, self._proc)
                cpu_ns = _cpu_ns(cgroup) if jobid in missing else None
                if jobid is not None and cpu_ns is not None:
                    self._usage[jobid] = Usage(cgroup, cpu_ns, now_ns)
        for usage in self._usage.values():
            self._update(usage, now_ns)

    def _update(self, usage: Usage, now_ns: int) -> None:
        cpu_ns = _cpu_ns(usage.cgroup)
        if cpu_ns is None:  # the job's processes are gone, its epilog is still to come
            usage.cores, usage.processes = 0.0, []
            return
        if now_ns > usage.at_ns:
            usage.cores = max(0, cpu_ns - usage.cpu_ns) / (now_ns - usage.at_ns)
            usage.cpu_ns, usage.at_ns = cpu_ns, now_ns
        if now_ns - usage.listed_ns >= _PROCESSES_EVERY_NS:
            usage.listed_ns = now_ns
            usage.processes = _processes(usage.cgroup, self._proc)


def _cpu_ns(cgroup: JobCgroup) -> int | None:
    path = cgroup.path("cpuacct")
    if path is None:
        return None
    try:
        if not cgroup.is_v2:
            return int((path / "cpuacct.usage").read_text())
        for line in (path / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) * 1000
    except (OSError, ValueError):
        return None
    return None


def _processes(cgroup: JobCgroup, proc: Path) -> list[tuple[int, int]]:
    found = []
    for pid in pids(cgroup):
        try:
            resident = int((proc / str(pid) / "statm").read_text().split()[1])
            name = (proc / str(pid) / "comm").read_text()
        except (OSError, ValueError, IndexError):
            continue
        if not name.startswith("slurmstepd"):
            found.append((pid, resident * _PAGE_BYTES))
    return found
