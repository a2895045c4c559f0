"""carme-view on a live Slurm: who sees what, how often Slurm is asked, what an outage does."""

import asyncio
import re
import time
from typing import Any

import pytest

from carme.errors import UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import Job
from carme.slurm.snapshot import Snapshot
from carme.view.client import AsyncViewClient, ViewClient
from support.cluster import wait_for
from support.slurm_live import Jobs, view

pytestmark = pytest.mark.cluster


@pytest.fixture
def client(cluster: Any) -> ViewClient:
    return ViewClient.of(cluster.config.view)


def calls_by(cluster: Any, user: str) -> int:
    """How many calls of this user slurmctld has counted since the last reset."""
    output = cluster.run(["sdiag"]).stdout
    match = re.search(rf"^\s*{re.escape(user)}\s*\(\s*\d+\) count:(\d+)", output, re.MULTILINE)
    return int(match[1]) if match else 0


def view_user(cluster: Any) -> str:
    owner: str = cluster.run(["stat", "-c", "%U", str(cluster.config.view.socket)]).stdout.strip()
    return owner


def test_two_users_and_the_hub(cluster: Any, jobs: Jobs, client: ViewClient) -> None:
    ann, ben = cluster.users[:2]
    hers = jobs.submit(ann, "-p", "cpu", "--job-name=ann-secret", "--comment=ann-comment")
    his = jobs.submit(ben, "-p", "cpu", "--job-name=ben-secret", "--comment=ben-comment")
    jobs.running(hers)
    jobs.running(his)
    everything = client.refresh(0)
    assert everything.complete
    assert {hers, his} <= {job.id for job in everything.jobs}

    for me, own_job, other, others in ((ann, hers, ben, his), (ben, his, ann, hers)):
        snapshot = view(cluster, me, "snapshot")
        assert (snapshot["complete"], {job["user"] for job in snapshot["jobs"]}) == (False, {me})
        assert [node["name"] for node in snapshot["nodes"]] == [n.name for n in everything.nodes]
        assert snapshot["load"]["cpu"]["running"] >= 2
        text = Snapshot.model_validate(snapshot).model_dump_json()
        for word in (f'"{other}"', f"{other.split('-')[-1]}-secret", f'"id":{others},'):
            assert word not in text
        assert view(cluster, me, "job", job_id=own_job)["id"] == own_job
        assert view(cluster, me, "job", job_id=others)["error"] == "missing"
        assert view(cluster, me, "extend", job_id=others, seconds=600)["error"] == "missing"

    hub = view(cluster, cluster.config.hub.user, "snapshot")
    assert (hub["complete"], {hers, his} <= {job["id"] for job in hub["jobs"]}) == (True, True)


def test_refreshes_are_coalesced(cluster: Any, client: ViewClient) -> None:
    user = view_user(cluster)
    client.refresh(0)
    time.sleep(1.1)
    assert cluster.run(["sdiag", "--reset"]).returncode == 0
    reads = client.counters()["reads"]

    async def many() -> None:
        asking = AsyncViewClient(cluster.config.view.socket)
        for _ in range(3):
            await asyncio.gather(*(asking.refresh(0, jobs_only=True) for _ in range(20)))

    started = time.monotonic()
    asyncio.run(many())
    assert 1.9 < time.monotonic() - started < 10
    new_reads = client.counters()["reads"] - reads
    assert 3 <= new_reads <= 4
    # Jobs are one call, nodes two; a poll that falls due meanwhile adds two more.
    assert calls_by(cluster, user) <= 3 * new_reads + 2


def test_expected_start_is_cached(cluster: Any, client: ViewClient) -> None:
    resources = ResourceRequest(partition="gpu", gpus=1, hours=1 / 6)
    first = client.expected_start(resources)
    asked_before = client.counters()["test_only_asked"]
    assert client.expected_start(resources) == first
    assert client.counters()["test_only_asked"] == asked_before
    assert first.starts_at > time.time() - 3600


def test_history_is_ones_own(cluster: Any, jobs: Jobs) -> None:
    ann, ben = cluster.users[:2]
    since = int(time.time()) - 60
    submitted = {user: jobs.submit(user, "-p", "cpu", command="true") for user in (ann, ben)}

    def are_recorded() -> bool:
        job_ids = cluster.run(["sacct", "-n", "-X", "-a", "-o", "JobIDRaw"]).stdout.split()
        return {str(job_id) for job_id in submitted.values()} <= set(job_ids)

    wait_for(are_recorded, 30, "the accounting database knows both jobs")
    query = {"since": since, "until": int(time.time()) + 60}
    hers = view(cluster, ann, "history", **query)
    assert {job["user"] for job in hers} == {ann}
    everybody = view(cluster, cluster.config.hub.user, "history", **query)
    assert set(submitted.values()) <= {job["id"] for job in everybody}


def test_more_time(cluster: Any, jobs: Jobs) -> None:
    ann = cluster.users[0]
    job_id = jobs.submit(ann, "-p", "gpu", "-t", "10")
    jobs.running(job_id)
    longer = view(cluster, ann, "extend", job_id=job_id, seconds=1200)
    assert longer.get("limit_seconds") == 1800, longer
    limit = cluster.run(["squeue", "-h", "-j", str(job_id), "-o", "%l"]).stdout.strip()
    assert limit == "30:00"
    too_long = view(cluster, ann, "extend", job_id=job_id, seconds=9 * 3600)
    assert (too_long["error"], "partition gpu allows" in too_long["message"]) == ("denied", True)


def test_more_time_for_a_part_of_an_array(cluster: Any, jobs: Jobs, client: ViewClient) -> None:
    ann = cluster.users[0]
    array = jobs.submit(ann, "-p", "cpu", "-t", "10", "--array=1-4%2")

    def running() -> list[Job] | None:
        array_jobs = [
            job for job in client.refresh(0, jobs_only=True).jobs if job.array_job_id == array
        ]
        tasks = [job for job in array_jobs if job.array_task_id is not None and job.state.active]
        return tasks if len(tasks) == 2 else None

    first, second = wait_for(running, 30, "two of the array's tasks run")
    refused = view(cluster, ann, "extend", job_id=array, seconds=1200)
    limits = {job.id: job.limit_seconds for job in client.refresh(0, jobs_only=True).jobs}
    assert (refused.get("error"), limits[first.id], limits[second.id]) == ("input", 600, 600)
    assert "tasks 3-4%2 of an array wait" in refused["message"]
    assert view(cluster, ann, "extend", job_id=first.id, seconds=600)["limit_seconds"] == 1200
    limits = {job.id: job.limit_seconds for job in client.refresh(0, jobs_only=True).jobs}
    assert (limits[second.id], limits[array]) == (600, 600), "the others are left alone"


def test_an_outage_of_the_controller(cluster: Any, jobs: Jobs, client: ViewClient) -> None:
    job_id = jobs.submit(cluster.users[0], "-p", "cpu")
    jobs.running(job_id)
    before = client.refresh(0)
    cluster.stop("slurmctld")
    try:
        with pytest.raises(UnavailableError):
            client.refresh(0)
        snapshot = client.snapshot()
        assert (snapshot.controller, bool(snapshot.error)) == ("away", True)
        assert (snapshot.taken_at, snapshot.jobs) == (before.taken_at, before.jobs)
    finally:
        cluster.start("slurmctld")

    def back() -> Snapshot | None:
        try:
            return client.refresh(0)
        except UnavailableError:
            return None

    after = wait_for(back, 60, "the view sees the controller again")
    assert (after.controller, after.job(job_id).state.active) == ("up", True)


def test_a_restart_of_the_view(cluster: Any, client: ViewClient) -> None:
    assert client.snapshot().nodes
    cluster.stop("view")
    assert not cluster.config.view.socket.exists()
    with pytest.raises(UnavailableError, match="is carme-view running"):
        client.snapshot()
    cluster.start("view")

    def is_up() -> bool:
        try:
            return bool(client.refresh(5).nodes)
        except UnavailableError:
            return False

    wait_for(is_up, 20, "the view answers again")
