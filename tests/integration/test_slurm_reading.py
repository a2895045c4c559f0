"""Commands and slurmrestd on a live Slurm: the same cluster, the same models."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from carme.errors import InputError, UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.client import SlurmClient, read_snapshot
from carme.slurm.command_client import CommandClient
from carme.slurm.command_runner import SlurmCommandRunner
from carme.slurm.models import Job, SlurmModel
from carme.slurm.rest_client import RestClient
from carme.slurm.states import JobState
from support.cluster import wait_for
from support.slurm_live import Jobs

pytestmark = pytest.mark.cluster

NASTY = 'x UserId=root(0)\nJobId=1 | \x1f \x1b[31m ümlaut "quoted" none'


@pytest.fixture
def command(cluster: Any) -> CommandClient:
    return CommandClient.of(cluster.config.slurm)


@pytest.fixture
def rest(cluster: Any) -> RestClient:
    return RestClient.of(cluster.config.slurm)


def equal(
    first: SlurmClient, second: SlurmClient, read: Callable[[SlurmClient], tuple[SlurmModel, ...]]
) -> tuple[SlurmModel, ...]:
    """The result of both clients once they agree: the cluster may change between two reads."""
    end = time.monotonic() + 20
    while True:
        first_value, second_value = read(first), read(second)
        if first_value == second_value:
            return first_value
        if time.monotonic() > end:
            assert first_value == second_value
        time.sleep(0.5)


def test_both_ways_give_equal_models(
    cluster: Any, jobs: Jobs, command: CommandClient, rest: RestClient
) -> None:
    ann, ben = cluster.users[:2]
    typed = jobs.submit(ann, "-p", "gpu", "--gres=gpu:virtual-a100:2", "-t", "10")
    nasty = jobs.submit(ann, "-p", "gpu", "--gpus=1", f"--job-name={NASTY}", f"--comment={NASTY}")
    spread = jobs.submit(ben, "-p", "gpu", "-N2", "--gpus-per-node=1", "-t", "20")
    array = jobs.submit(ben, "-p", "cpu", "--array=1-4%1", "-t", "30")
    held = jobs.submit(ben, "-p", "gpu", "--hold", "-n2", "--gpus-per-task=virtual-t4:1")
    later = jobs.submit(ben, "-p", "cpu", "--begin=now+1hour")
    after = jobs.submit(ben, "-p", "cpu", f"--dependency=afterok:{held}")
    failed = jobs.submit(ann, "-p", "cpu", command="exit 3")
    for job_id in (typed, nasty, spread):
        jobs.running(job_id)
    jobs.wait(failed, lambda job: job.state is JobState.FAILED, "fails")

    jobs_by_id = {
        job.id: job for job in equal(command, rest, lambda c: c.jobs()) if isinstance(job, Job)
    }
    assert jobs_by_id[typed].gpus == {"virtual-a100": 2}
    assert [len(i) for i in jobs_by_id[typed].gpu_indices.values()] == [2]
    assert (jobs_by_id[nasty].name, jobs_by_id[nasty].user, jobs_by_id[nasty].comment) == (
        NASTY,
        ann,
        NASTY,
    )
    assert jobs_by_id[nasty].gpu_count == 1
    assert jobs_by_id[spread].nodes == ("gpu01", "gpu02")
    assert jobs_by_id[spread].gpus == {"virtual-a100": 1, "virtual-t4": 1}
    assert set(jobs_by_id[spread].gpu_indices) == {"gpu01", "gpu02"}
    assert (jobs_by_id[held].state, jobs_by_id[held].reason) == (JobState.PENDING, "JobHeldUser")
    assert jobs_by_id[held].gpus == {"virtual-t4": 2}
    assert jobs_by_id[later].reason == "BeginTime"
    assert jobs_by_id[after].dependency
    assert (jobs_by_id[failed].exit_code, jobs_by_id[failed].state.ended) == (3, True)
    assert jobs_by_id[array].array_tasks == "2-4%1"
    tasks = [job for job in jobs_by_id.values() if job.array_job_id == array and job.id != array]
    assert [task.array_task_id for task in tasks] == [1]
    used = [index for job in jobs_by_id.values() for index in job.gpu_indices.get("gpu01", ())]
    assert len(used) == len(set(used)), "no GPU is given twice"

    columns = CommandClient(SlurmCommandRunner.of(cluster.config.slurm), 0, use_json=False)
    without = {job.id: job for job in columns.jobs()}
    for job_id, job in jobs_by_id.items():
        same = {"gpu_indices": {}, "gpus": without[job_id].gpus}
        assert without[job_id] == job.model_copy(update=same)
        assert without[job_id].gpu_count == job.gpu_count


def test_nodes_partitions_and_reservations(
    cluster: Any, command: CommandClient, rest: RestClient
) -> None:
    ann = cluster.users[0]
    update = ["scontrol", "update", "NodeName=cpu01", "State=DRAIN", "Reason=bad disk, a=b (test)"]
    reserve = ["scontrol", "create", "reservation", "ReservationName=carme-test", f"Users={ann}"]
    reserve += ["StartTime=now+2hours", "Duration=60", "Nodes=gpu02", "Flags=MAINT"]
    show = ["scontrol", "--all", "show", "nodes"]
    wait_for(lambda: "COMPLETING" not in cluster.run(show).stdout, 30, "earlier jobs are gone")
    assert cluster.run(update).returncode == 0
    try:
        assert cluster.run(reserve).returncode == 0
        nodes = {node.name: node for node in equal(command, rest, lambda c: c.nodes())}  # type: ignore[attr-defined]
        # The scheduler may have planned an earlier test's job there.
        assert set(nodes["cpu01"].flags) - {"PLANNED"} == {"DRAIN"}
        assert not nodes["cpu01"].open
        assert nodes["cpu01"].reason == "bad disk, a=b (test)"
        assert nodes["gpu01"].gpus == {"virtual-a100": 4}
        assert nodes["gpu01"].partitions == ("gpu",)
        partitions = equal(command, rest, lambda c: c.partitions())
        assert {p.name: p.default for p in partitions} == {"gpu": True, "cpu": False}  # type: ignore[attr-defined]
        reservations = equal(command, rest, lambda c: c.reservations())
        assert [(r.name, r.nodes, r.users) for r in reservations] == [  # type: ignore[attr-defined]
            ("carme-test", ("gpu02",), (ann,))
        ]
    finally:
        cluster.run(["scontrol", "update", "NodeName=cpu01", "State=RESUME"])
        cluster.run(["scontrol", "delete", "ReservationName=carme-test"])
    assert command.version() == rest.version()


def test_history(cluster: Any, jobs: Jobs, command: CommandClient, rest: RestClient) -> None:
    ann = cluster.users[0]
    since = int(time.time()) - 60
    job_id = jobs.submit(ann, "-p", "gpu", "--gres=gpu:1", f"--job-name={NASTY}", command="exit 3")
    jobs.wait(job_id, lambda job: job.state.ended, "ends")

    def find(client: SlurmClient) -> Any:
        history = client.history(since, int(time.time()) + 60, (ann,))
        assert all(job.user == ann for job in history)
        return next((job for job in history if job.id == job_id and job.ended_at), None)

    record = wait_for(lambda: find(command), 30, "sacct knows the job")
    two = wait_for(lambda: find(rest), 30, "slurmdbd knows the job")
    assert (record.state, record.exit_code) == (JobState.FAILED, 3)
    assert sum(record.gpus.values()) == 1
    # Memory and CPU time are rounded differently on the two ways, and slurmrestd 22.05 loses
    # the exit code.
    assert two.exit_code in (3, None)
    loose = {"cpu_seconds": None, "max_rss_bytes": None, "exit_code": None}
    assert record.model_copy(update=loose) == two.model_copy(update=loose)
    assert record.name == NASTY.replace('"', "`"), "the database keeps no double quotes"


def test_expected_start(cluster: Any, command: CommandClient) -> None:
    expected = command.expected_start(
        ResourceRequest(partition="gpu", gpus=1, memory_gb=1).sbatch_options()
    )
    assert abs(expected.starts_at - time.time()) < 86400
    assert expected.nodes
    with pytest.raises(InputError):
        command.expected_start(ResourceRequest(partition="gpu", gpus=64).sbatch_options())


def test_the_controller_goes_and_comes_back(cluster: Any) -> None:
    quick = cluster.config.slurm.model_copy(update={"retry_seconds": 1})
    patient = cluster.config.slurm.model_copy(update={"retry_seconds": 60})
    cluster.stop("slurmctld")
    starting = threading.Timer(3, cluster.start, ("slurmctld",))
    try:
        for client in (CommandClient.of(quick), RestClient.of(quick)):
            with pytest.raises(UnavailableError):
                client.nodes()
    finally:
        starting.start()
    for client in (CommandClient.of(patient), RestClient.of(patient)):
        assert len(read_snapshot(client).nodes) == 3
    starting.join()
