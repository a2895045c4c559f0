"""The exporter of a node: which jobs it takes for running, whatever records and cgroups say."""

import shutil

import pytest

from carme_monitoring.collectors.jobs import CgroupCollector

from .conftest import World, joules


def test_conflicts_are_counted_once(world: World) -> None:
    world.write("proc/4002/cgroup", "0::/system.slice/slurmstepd.scope/job_101/step_0\n")
    exporter = world.exporter()
    for _ in range(3):
        samples = exporter.collect()
    conflicts = samples.families["carme_gpu_holder_conflicts_total"]
    assert conflicts == {("process_on_foreign_gpu",): 1}


@pytest.mark.parametrize("known_by", ["slurmstepd", "record"])
def test_processes_in_a_cgroup_named_by_sluid_are_their_job_s(world: World, known_by: str) -> None:
    folder = "/system.slice/slurmstepd.scope/s8FXKTA79XAR00"
    world.write("proc/4002/cgroup", f"0::{folder}/step_0/user/task_0\n")
    world.write("proc/4001/cgroup", f"0::{folder}\n")
    if known_by == "record":
        (world.root / "proc/4103/cmdline").unlink()
    else:
        (world.root / "run/jobs/n1.103.0.json").unlink()
    world.end(102)
    world.record(103, gpus=[0, 1], sluid="s8FXKTA79XAR00" if known_by == "record" else "")
    exporter = world.exporter()
    samples = exporter.collect()
    assert "carme_gpu_holder_conflicts_total" not in samples.families
    assert exporter.accounting.sm_share == {("GPU-aaaa", 103): 90, ("GPU-bbbb", 103): 0}


def test_a_lost_epilog_is_noticed(world: World) -> None:
    world.record(107, gpus=[0])
    (world.root / "cgroup/memory/slurm_n1/uid_1001/job_107").mkdir(parents=True)
    for controller in ("cpuacct", "memory", "cpuset", "blkio", "pids", "devices"):
        shutil.rmtree(world.root / f"cgroup/{controller}/slurm_n1/uid_1001/job_101", True)
    exporter = world.exporter()
    exporter.collect()
    world.wait(10)
    samples = exporter.collect()
    assert samples.families["carme_gpu_holder_conflicts_total"][("stale_record",)] == 1
    holders = {k[0] for k in samples.families["carme_job_gpu_held"] if k[3] == "GPU-aaaa"}
    assert holders == {"107"}


def _without_cgroup(world: World, jobid: int) -> None:
    for folder in list((world.root / "cgroup").rglob(f"job_{jobid}")):
        shutil.rmtree(folder)


def test_a_job_that_lost_its_epilog_does_not_come_back(world: World) -> None:
    """Its record stays open: neither time nor a restart of the exporter makes a job of it again."""
    _without_cgroup(world, 101)
    world.record(107, gpus=[0])
    (world.root / "cgroup/memory/slurm_n1/uid_1001/job_107").mkdir(parents=True)
    exporter = world.exporter()
    exporter.collect()
    for step in range(40):
        world.wait(15)
        world.gpus.burn("GPU-aaaa", 100)
        if step == 30:
            exporter = world.exporter()
        samples = exporter.collect()
        if step < 30:
            assert samples.families["carme_gpu_holder_conflicts_total"][("stale_record",)] == 1
    assert "101" not in {labels[0] for labels in samples.families["carme_job_info"]}
    assert joules(samples, 107)["gpu"] == 4000
    (world.root / "run/jobs/n1.101.0.json").unlink()
    world.wait(2)
    exporter.settle(107)
    assert not exporter.accounting.state.table.closed


def test_a_job_whose_cgroup_stays_away_is_over(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    _without_cgroup(world, 102)
    for _ in range(20):
        world.wait(15)
        world.gpus.burn("GPU-bbbb", 10)
        samples = exporter.collect()
    assert samples.value("carme_job_gpu_held", "102", "n1", "1", "GPU-bbbb") == 1
    for _ in range(42):
        world.wait(15)
        world.gpus.burn("GPU-bbbb", 10)
        samples = exporter.collect()
    assert joules(samples, 102) == {}
    assert "102" not in {labels[0] for labels in samples.families["carme_job_info"]}
    assert samples.families["carme_gpu_holder_conflicts_total"][("stale_record",)] == 1
    unallocated = samples.value("carme_node_energy_joules_total", "unallocated", "gpu")
    assert unallocated == 620 - 22 * 10


def test_a_job_between_two_steps_goes_on(world: World) -> None:
    """Without an extern step the cgroup of an allocation is there only while a step runs."""
    exporter = world.exporter()
    exporter.collect()
    _without_cgroup(world, 102)
    for _ in range(30):
        world.wait(15)
        samples = exporter.collect()
    assert samples.value("carme_job_gpu_held", "102", "n1", "1", "GPU-bbbb") is None
    folder = "cgroup/system.slice/slurmstepd.scope/job_102/"
    world.write(folder + "pids.current", "0\n")  # left behind, not back
    exporter.collect()
    assert exporter.accounting.state.table.jobs[102].end_ns is not None
    world.write(folder + "pids.current", "3\n")
    world.wait(15)
    exporter.collect()
    world.wait(15)
    world.gpus.burn("GPU-bbbb", 33)
    samples = exporter.collect()
    assert samples.value("carme_job_gpu_held", "102", "n1", "1", "GPU-bbbb") == 1
    assert joules(samples, 102)["gpu"] == 33


def test_cgroups_that_cannot_be_read_end_no_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.root / "run/jobs/n1.102.0.json").unlink()
    exporter = world.exporter()
    exporter.collect()
    monkeypatch.setattr(CgroupCollector, "read", lambda _: 1 // 0)
    for _ in range(30):
        world.wait(15)
        exporter.collect()
    assert {job.jobid for job in exporter.accounting.state.table.running()} == {101, 102, 103}


def test_jobs_without_a_record_are_found_by_their_cgroups(world: World) -> None:
    shutil.rmtree(world.root / "run")
    exporter = world.exporter()
    exporter.collect()
    world.wait(10)
    world.gpus.burn("GPU-bbbb", 50)
    samples = exporter.collect()
    assert {labels[0] for labels in samples.families["carme_job_info"]} == {"101", "102", "103"}
    assert samples.value("carme_job_gpu_held", "102", "n1", "1", "GPU-bbbb") == 1
    assert joules(samples, 102)["gpu"] == 50


def test_jobs_of_another_cluster_on_the_machine_are_left_alone(world: World) -> None:
    (world.root / "run/jobs/n1.102.0.json").unlink()
    samples = world.exporter(unrecorded_jobs=False).collect()
    assert {labels[0] for labels in samples.families["carme_job_info"]} == {"101", "103"}
    assert "102" not in {labels[0] for labels in samples.families["carme_job_memory_used_bytes"]}
