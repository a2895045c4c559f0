"""Any service may be killed at any time: it restarts, and sessions continue."""

import os
import signal
import time

import psutil
import pytest

from support.cluster import wait_for
from support.hub import User

PARTS = [
    *("vgpu", "munged", "mariadbd", "slurmdbd", "slurmctld", "slurmrestd", "view"),
    *("slurmd-gpu01", "slurmd-gpu02", "slurmd-cpu01", "proxy", "hub", "service"),
    *("discovery", "prometheus", "alertmanager"),
    *("exporter-gpu01", "exporter-gpu02", "exporter-cpu01", "exporter-controller"),
]


@pytest.fixture(scope="module")
def session(cluster):
    """A session with a kernel in it."""
    person = User.fresh(cluster, cluster.users[0])
    person.start(partition="gpu", gpus=1, gpu_type="virtual-a100", cpus=1, memory_gb=1, hours=1)
    kernel = person.server("POST", "/api/kernels", json={"name": "python3"}).json()["id"]
    _wait_for_saved_state(cluster, person)
    yield person, kernel
    person.stop()


def _wait_for_saved_state(cluster, person):
    """Return when slurmctld has saved that the session's job runs.

    It saves changes of jobs within five seconds. If it is killed earlier, Slurm loses the job.
    """
    [job] = cluster.jobs(person.name)
    changed_at = time.time()
    update = cluster.run(["scontrol", "update", f"JobId={job['id']}", "AdminComment=running"])
    assert update.returncode == 0, update.stderr
    state = cluster.dir / "state/slurm/ctld/job_state"

    def is_saved():
        try:
            return state.stat().st_mtime > changed_at
        except FileNotFoundError:  # between two names, while slurmctld replaces it
            return False

    wait_for(is_saved, 30, "Slurm has saved the job's state")


def test_the_list_of_parts_is_whole(cluster):
    assert set(PARTS) == {line.service.name for line in cluster.local.health()}


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_is_back_and_the_notebook_survives(cluster, session, part):
    person, kernel = session
    [job] = cluster.jobs(person.name)
    before = cluster.pid(part)
    os.kill(before, signal.SIGKILL)
    started = time.monotonic()
    wait_for(
        lambda: cluster.pid(part) not in (0, before) and cluster.is_healthy(part),
        10,
        f"{part} is back",
    )
    remaining = 10 - (time.monotonic() - started)

    def reachable():
        response = person.server("GET", "/api/kernels")
        return response.status_code == 200 and kernel in {entry["id"] for entry in response.json()}

    wait_for(reachable, max(remaining, 1), f"the kernel is reachable after {part} was killed")
    assert [entry["id"] for entry in cluster.jobs(person.name)] == [job["id"]]
    assert person.state().get("ready")


def test_lost_routes_are_restored_within_5_seconds(cluster, session):
    person, _ = session
    cluster.stop("proxy")
    cluster.start("proxy")
    wait_for(
        lambda: person.server("GET", "/api/status").status_code == 200,
        5,
        "the route of the session",
    )


def test_a_controller_away_for_a_minute_ends_no_session(cluster, session):
    person, _ = session
    cluster.stop("slurmctld")
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert person.server("GET", "/api/status").status_code == 200
            assert person.state().get("ready")
            time.sleep(5)
    finally:
        cluster.start("slurmctld")
    wait_for(lambda: cluster.is_healthy("slurmctld"), 20, "slurmctld is back")
    time.sleep(12)  # longer than the hub's own look at its sessions
    assert person.state().get("ready")


def test_a_killed_supervisor_is_replaced_and_the_session_stays(cluster, session):
    person, kernel = session
    os.kill(cluster.local.supervisor.pid(), signal.SIGKILL)
    wait_for(lambda: not cluster.local.supervisor.is_alive(), 5, "the supervisor's death")
    cluster.local.up(print)
    wait_for(
        lambda: person.server("GET", f"/api/kernels/{kernel}").status_code == 200, 20, "the kernel"
    )


def test_every_port_is_on_loopback(cluster, session):
    pids = {psutil.Process(cluster.pid(part)).pid for part in PARTS}
    for connection in psutil.net_connections("inet"):
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids:
            assert connection.laddr.ip in ("127.0.0.1", "::1"), connection
