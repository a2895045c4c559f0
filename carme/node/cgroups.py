"""The cgroups of Slurm's jobs on this host: cgroup v1 and v2, several slurmd, all naming schemes.

v1: <controller>/slurm[_NODE]/uid_U/job_N/step_S; v2: <…>/[NODE_]slurmstepd.scope/job_N/step_S.
From Slurm 26.05 on, v2 folders are named by SLUID (`s8FXKTA79XAR00`) instead of `job_N`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_JOB = re.compile(r"job_(\d+)")
SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
_STEPD_TITLE = re.compile(rb"slurmstepd: \[(\d+)\.")
_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)
_SCOPE = re.compile(r"(?:(?P<node>[\w.-]+?)_)?slurmstepd\.scope")
_V1_TOP = re.compile(r"slurm(?:_(?P<node>[\w.-]+))?")
V1_CONTROLLERS = ("cpuacct", "memory", "devices", "blkio", "pids", "cpu", "cpuset", "freezer")


@dataclass(frozen=True)
class JobCgroup:
    """A job's folders: by controller on v1, the one folder under "" on v2."""

    jobid: int | None
    sluid: str
    node: str
    """The slurmd's node name if the path has one, else empty."""
    paths: dict[str, Path]

    @property
    def is_v2(self) -> bool:
        return "" in self.paths

    def path(self, controller: str) -> Path | None:
        return self.paths.get("") or self.paths.get(controller)


def find_jobs(root: Path, node: str = "") -> list[JobCgroup]:
    """Every job's cgroup below `root` (/sys/fs/cgroup), of this node where paths name a node."""
    jobs: dict[tuple[str, str], JobCgroup] = {}
    for controller in V1_CONTROLLERS:
        for top in _folders(root / controller):
            match = _V1_TOP.fullmatch(top.name)
            if not match or (match["node"] and node and match["node"] != node):
                continue
            for user in _folders(top):
                for job in _folders(user):
                    _add(jobs, job, match["node"] or "", controller)
    for base in (root, root / "unified"):
        for scope in _scopes(base):
            match = _SCOPE.fullmatch(scope.name)
            if match and not (match["node"] and node and match["node"] != node):
                for job in _folders(scope):
                    _add(jobs, job, match["node"] or "", "")
    return list(jobs.values())


def pids(job: JobCgroup) -> list[int]:
    """The processes of the job's steps, without Slurm's own in `step_extern`."""
    controller = "" if job.is_v2 else next(
        (name for name in ("cpuacct", "memory", "freezer", "devices") if name in job.paths), ""
    )  # fmt: skip
    numbers: list[int] = []
    if top := job.paths.get(controller):
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if name != "step_extern" and name != "slurm"]
            numbers += _numbers(Path(folder) / "cgroup.procs")
    return numbers


def jobid_of(job: JobCgroup, proc: Path = Path("/proc")) -> int | None:
    """The job's id; where folders are named by SLUID, from the title of its slurmstepd."""
    if job.jobid is not None:
        return job.jobid
    for folder, _, names in os.walk(job.paths[""]):
        if "cgroup.procs" not in names:
            continue
        for pid in _numbers(Path(folder) / "cgroup.procs"):
            try:
                title = (proc / str(pid) / "cmdline").read_bytes()
                status = (proc / str(pid) / "status").read_bytes()
            except OSError:
                continue
            # Any process can give itself this title, but only slurmstepd's runs as root. The owner
            # of the folder in /proc does not tell: a process can hide it.
            if _ROOT.search(status) and (match := _STEPD_TITLE.match(title)):
                return int(match[1])
    return None


def _add(jobs: dict[tuple[str, str], JobCgroup], folder: Path, node: str, controller: str) -> None:
    match = _JOB.fullmatch(folder.name)
    is_sluid = SLUID.fullmatch(folder.name)
    if not match and not is_sluid:
        return
    entry = jobs.setdefault(
        (node, folder.name),
        JobCgroup(int(match[1]) if match else None, folder.name if is_sluid else "", node, {}),
    )
    if "" not in entry.paths:
        entry.paths[controller] = folder


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_bytes().split() if word.isdigit()]
    except OSError:
        return []


def _folders(path: Path) -> Iterator[Path]:
    try:
        with os.scandir(path) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # missing, or removed meanwhile
        return
    yield from sorted(folders)


def _scopes(base: Path) -> Iterator[Path]:
    """Slurm's scopes: at the top, or in system.slice, or one level deeper in a container."""
    for first in _folders(base):
        if _SCOPE.fullmatch(first.name):
            yield first
        elif first.name.endswith(".slice"):
            for second in _folders(first):
                if _SCOPE.fullmatch(second.name):
                    yield second
