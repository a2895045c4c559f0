"""Finding jobs in every layout of cgroups that Slurm makes."""

from pathlib import Path

import pytest

from carme.node.cgroups import find_jobs, jobid_of, pids

V1 = ("cpuacct", "memory", "devices")


def jobs(root: Path, node: str = "") -> dict[str, list[str]]:
    return {str(job.jobid or job.sluid): sorted(job.paths) for job in find_jobs(root, node)}


@pytest.mark.parametrize("top", ["slurm", "slurm_gpu01"])
def test_v1(tmp_path: Path, top: str) -> None:
    for controller in V1:
        (tmp_path / controller / top / "uid_1000/job_7/step_0/task_0").mkdir(parents=True)
    (tmp_path / "memory/slurm_gpu02/uid_1000/job_8").mkdir(parents=True)
    (tmp_path / "memory/user.slice/uid_1000/job_9").mkdir(parents=True)
    assert jobs(tmp_path, "gpu01") == {"7": sorted(V1)}


@pytest.mark.parametrize(
    "scope",
    ["system.slice/slurmstepd.scope", "system.slice/gpu01_slurmstepd.scope", "slurmstepd.scope",
     "unified/system.slice/gpu01_slurmstepd.scope"],
)  # fmt: skip
def test_v2(tmp_path: Path, scope: str) -> None:
    (tmp_path / scope / "job_7/step_0").mkdir(parents=True)
    (tmp_path / scope / "system").mkdir()
    (tmp_path / "system.slice/gpu02_slurmstepd.scope/job_8").mkdir(parents=True)
    assert jobs(tmp_path, "gpu01") == {"7": [""]}


def test_sluids(tmp_path: Path) -> None:
    cgroup, proc = tmp_path / "cgroup", tmp_path / "proc"
    scope = cgroup / "system.slice/slurmstepd.scope"
    (scope / "s8FXKTA79XAR00/step_batch/slurm").mkdir(parents=True)
    (scope / "s8FXKTA79XAR0U").mkdir()  # U is no digit of theirs
    (scope / "snapshot").mkdir()
    (scope / "s8FXKTA79XAR00/step_batch/slurm/cgroup.procs").write_text("41\n42\n")
    for pid, jobid, uid in (("41", 666, 1001), ("42", 123, 0)):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cmdline").write_bytes(b"slurmstepd: [%d.batch]\0" % jobid)
        (proc / pid / "status").write_text("Name:\tx\nUid:" + 4 * f"\t{uid}" + "\nGid:\t0\n")
    [job] = find_jobs(cgroup)
    assert (job.jobid, job.sluid) == (None, "s8FXKTA79XAR00")
    assert jobid_of(job, proc) == 123
    (proc / "42/cmdline").unlink()
    assert jobid_of(job, proc) is None


def test_processes_without_slurms_own(tmp_path: Path) -> None:
    job = tmp_path / "cpuacct/slurm/uid_1/job_7"
    for name, text in (("step_0/task_0", "5\n6\n"), ("step_extern/task_0", "7\n"), ("", "x\n")):
        (job / name).mkdir(parents=True, exist_ok=True)
        (job / name / "cgroup.procs").write_text(text)
    assert pids(find_jobs(tmp_path)[0]) == [5, 6]


def test_nothing_there(tmp_path: Path) -> None:
    assert find_jobs(tmp_path / "none") == []
