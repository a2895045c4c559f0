"""The states of a session from submission to its end, and the messages for its user."""

import os
import signal
import time

import pytest

from support.cluster import wait_for
from support.hub import User
from support.slurm_live import take_cpu_node

GIVE_UP = "import os\nprint('I give up', flush=True)\nos._exit(3)\n"
SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 0.5}


@pytest.fixture
def ben(cluster):
    """A user without a session, before and after."""
    person = User.fresh(cluster, cluster.users[1])
    yield person
    person.stop()


@pytest.fixture
def busy(cluster):
    """All cores of cpu01 taken by another user's job."""
    job = take_cpu_node(cluster)
    yield job
    cluster.run(["scancel", job])


def home(person):
    return person.web.get(f"{person.url}/hub/home", timeout=20).text


def test_scancel_by_an_administrator_is_noticed_and_told(cluster, ben):
    ben.start(**SMALL)
    [job] = cluster.jobs(ben.name)
    cluster.run(["scancel", job["id"]])
    wait_for(lambda: not ben.state(), 60, "the hub notices")
    assert "The session was cancelled." in home(ben)
    assert "Start again with the same choices" in home(ben)


def test_a_lost_node_is_noticed_and_told(cluster, ben):
    ben.start(**SMALL)
    cluster.run(["scontrol", "update", "nodename=cpu01", "state=down", "reason=test"])
    try:
        wait_for(lambda: not ben.state(), 60, "the hub notices")
        assert "The node that the session ran on failed." in home(ben)
    finally:
        cluster.run(["scontrol", "update", "nodename=cpu01", "state=resume"])
        wait_for(lambda: cluster.is_healthy("slurmd-cpu01"), 30, "cpu01 is back")


def test_a_server_that_dies_ends_the_spawn_at_once_with_its_log(cluster, ben):
    broken = f"/home/{ben.name}/.jupyter/jupyter_server_config.py"
    cluster.run_as(ben.name, ["mkdir", "-p", f"/home/{ben.name}/.jupyter"])
    cluster.run_as(ben.name, ["tee", broken], input=GIVE_UP)
    try:
        started = time.monotonic()
        ben.spawn(**SMALL)
        wait_for(lambda: not ben.state(), 40, "the spawn's end")
        assert time.monotonic() - started < 40
        page = ben.web.get(f"{ben.url}/hub/spawn-pending/{ben.name}", timeout=20).text
        assert "The session failed." in page
        assert "I give up" in page
        assert "exit code 3 before it listened" in page
    finally:
        cluster.run(["rm", broken])


def test_a_waiting_session_can_be_cancelled_and_its_job_goes(cluster, ben, busy):
    ben.spawn(**SMALL)
    wait_for(lambda: [j["state"] for j in cluster.jobs(ben.name)] == ["PENDING"], 20, "it waits")
    ben.stop()
    wait_for(lambda: not cluster.jobs(ben.name), 20, "the job's end")


def test_progress_says_why_it_waits_and_only_when_something_changed(cluster, ben, busy):
    ben.spawn(**SMALL)
    wait_for(lambda: [j["state"] for j in cluster.jobs(ben.name)] == ["PENDING"], 20, "it waits")
    lines = []
    response = ben.api("GET", f"/users/{ben.name}/server/progress", stream=True)
    end = time.monotonic() + 8
    for line in response.iter_lines():
        if line.startswith(b"data:"):
            lines.append(line.decode())
        if time.monotonic() > end:
            break
    response.close()
    waits = [line for line in lines if "number 1 in the queue of cpu" in line]
    assert waits, lines
    assert len(lines) == len(set(lines))


def test_a_hub_killed_while_a_job_waits_finds_it_again(cluster, ben, busy):
    ben.spawn(**SMALL)
    [job] = wait_for(lambda: cluster.jobs(ben.name), 20, "the job")
    before = cluster.pid("hub")
    os.kill(before, signal.SIGKILL)
    wait_for(
        lambda: cluster.pid("hub") not in (0, before) and cluster.is_healthy("hub"), 20, "the hub"
    )
    # Longer than the hub's own limits for a session that does not answer.
    end = time.monotonic() + 130
    while time.monotonic() < end:
        assert [j["id"] for j in cluster.jobs(ben.name)] == [job["id"]]
        time.sleep(5)
    cluster.run(["scancel", busy])
    wait_for(lambda: ben.state().get("ready"), 60, "the session starts")
    assert [j["id"] for j in cluster.jobs(ben.name)] == [job["id"]]
    assert ben.server("GET", "/api/status").status_code == 200


def test_a_stop_while_slurm_is_away_ends_the_job_when_it_is_back(cluster, ben):
    ben.start(**SMALL)
    [job] = cluster.jobs(ben.name)
    with cluster.without("slurmctld"):
        assert ben.api("DELETE", f"/users/{ben.name}/server").status_code == 202
        assert ben.state()["pending"] == "stop"
    wait_for(lambda: cluster.is_healthy("slurmctld"), 30, "slurmctld is back")
    wait_for(lambda: not ben.state(), 120, "the session's end")
    assert job["id"] not in {j["id"] for j in cluster.jobs(ben.name)}


def test_a_full_home_is_said(cluster, ben):
    folder = f"/home/{ben.name}/.carme"
    cluster.run(["rm", "-rf", folder])
    cluster.run_as(ben.name, ["mkdir", folder])
    uid = cluster.run(["id", "-u", ben.name]).stdout.strip()
    cluster.run(["mount", "-t", "tmpfs", "-o", f"size=4k,mode=700,uid={uid}", "tmpfs", folder])
    try:
        cluster.run(["dd", "if=/dev/zero", f"of={folder}/fill", "bs=4k", "count=1"])
        response = ben.spawn(**SMALL)
        assert "space" in response.text.lower() or "full" in response.text.lower(), response.text
        assert response.status_code == 400
        assert not cluster.jobs(ben.name)
    finally:
        cluster.run(["umount", folder])
