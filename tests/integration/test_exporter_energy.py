"""Energy on the live cluster: the exporters charge every joule of the virtual GPUs exactly once."""

import os
import signal
import time

import pytest

from support.cluster import wait_for
from support.exporter import Exporter, submit, wait_ended

HELD_SECONDS = 280
"""Jobs that a test cancels last so long at most: nothing that the test waits for takes longer."""
BUSY = "timeout {0} sh -c 'while :; do :; done'"
GPU = ("--gres=gpu:1", "--mem=100", "-t", "5")


@pytest.fixture(scope="module")
def node(cluster):
    """The name of the first node with GPUs."""
    return next(entry.name for entry in cluster.config.local.nodes if entry.gpus)


@pytest.fixture(scope="module")
def exporter(cluster, node):
    return Exporter(cluster, node)


def wait_held(exporter, *jobs):
    """Wait until the exporter shows that each of the running jobs holds a GPU, all at once."""

    def all_held():
        held = exporter.values("carme_job_gpu_held")
        ids = {dict(labels)["jobid"] for labels, value in held.items() if value == 1}
        return ids >= {str(jobid) for jobid in jobs}

    wait_for(all_held, 180, f"jobs {jobs} hold a GPU each")


def charged(exporter, jobid):
    return exporter.total("carme_job_energy_joules_total", jobid=str(jobid), component="gpu")


def test_credentials_are_asked_for(exporter):
    import requests

    assert requests.get(exporter.url, timeout=10).status_code == 401
    assert requests.get(exporter.url, timeout=10, auth=("prometheus", "x")).status_code == 401
    assert exporter.scrape().status_code == 200


def test_two_users_jobs_are_charged_what_the_cards_spent(cluster, node, exporter):
    ann, ben = cluster.users[:2]
    loads = [
        BUSY.format(HELD_SECONDS),
        "while :; do timeout 1 sh -c 'while :; do :; done'; sleep 1; done",
    ]
    jobs = [
        submit(cluster, user, node, script, *GPU)
        for user, script in zip((ann, ben), loads, strict=True)
    ]
    wait_held(exporter, *jobs)
    for user, jobid in zip((ann, ben), jobs, strict=True):
        [labels] = exporter.values("carme_job_info", jobid=str(jobid))
        assert dict(labels)["user"] == user
    cluster.run(["scancel", *map(str, jobs)])
    wait_ended(cluster, exporter, *jobs)
    exporter.fresh()
    for jobid in jobs:
        spent = exporter.recorded_joules(jobid)
        assert spent > 100
        assert charged(exporter, jobid) == pytest.approx(spent, rel=0.01)
    series = exporter.series()
    user_metrics = ("carme_job_info", "carme_owner_")
    named = [labels for (name, labels) in series if not name.startswith(user_metrics)]
    assert not any("user" in dict(labels) or "account" in dict(labels) for labels in named)


def test_the_node_balances(exporter):
    exporter.fresh()
    series = exporter.series()
    metered = next(
        v for (name, _), v in series.items() if name == "carme_node_metered_joules_total"
    )
    booked = sum(v for (name, _), v in series.items() if name == "carme_node_energy_joules_total")
    carry = sum(v for (name, _), v in series.items() if name == "carme_node_energy_carry_joules")
    assert booked + carry == pytest.approx(metered, abs=0.1)


def test_a_job_of_two_seconds_is_accounted_in_full(cluster, node, exporter):
    jobid = submit(cluster, cluster.users[0], node, BUSY.format(2), *GPU)
    wait_ended(cluster, exporter, jobid)
    exporter.fresh()
    assert charged(exporter, jobid) == pytest.approx(exporter.recorded_joules(jobid), rel=0.01)


def test_an_idle_holder_shows_as_waste(cluster, node, exporter):
    jobid = submit(cluster, cluster.users[0], node, "sleep 8", "--gres=gpu:2", "--mem=100")
    wait_ended(cluster, exporter, jobid)
    exporter.fresh()
    held = exporter.total("carme_job_gpu_held_seconds_total", jobid=str(jobid))
    idle = exporter.total("carme_job_gpu_idle_seconds_total", jobid=str(jobid))
    assert held > 14
    assert idle > 0.9 * held
    wasted = exporter.total("carme_job_gpu_idle_joules_total", jobid=str(jobid))
    assert wasted == pytest.approx(charged(exporter, jobid), rel=0.15)


def test_killed_in_the_middle_not_a_joule_is_lost_or_doubled(cluster, node, exporter):
    jobid = submit(cluster, cluster.users[0], node, BUSY.format(8), *GPU)
    time.sleep(3)
    before = cluster.pid(exporter.part)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: cluster.pid(exporter.part) not in (0, before), 15, "the exporter is back")
    wait_ended(cluster, exporter, jobid)
    exporter.fresh()
    assert charged(exporter, jobid) == pytest.approx(exporter.recorded_joules(jobid), rel=0.01)


def test_away_at_start_and_end_the_hook_reads_the_counters(cluster, node, exporter):
    """The exporter is down when the job begins, and again when it ends."""
    cluster.stop(exporter.part)
    jobid = submit(cluster, cluster.users[1], node, BUSY.format(6), *GPU)
    time.sleep(3)
    cluster.start(exporter.part)
    exporter.fresh()
    cluster.stop(exporter.part)
    wait_ended(cluster, exporter, jobid)
    cluster.start(exporter.part)
    exporter.fresh()
    assert charged(exporter, jobid) == pytest.approx(exporter.recorded_joules(jobid), rel=0.01)


def test_a_lost_gpu_does_not_take_the_scrape_with_it(cluster, node, exporter):
    fault = ["carme-vgpu", "fault", "--run", str(exporter.run), node, "0", "*"]
    cluster.run([*fault, "gpu-is-lost"])
    try:
        exporter.fresh()
        assert exporter.total("carme_gpu_lost", gpu="0") == 1
        assert exporter.total("carme_gpu_lost") == 1
        assert exporter.total("carme_gpu_power_watts", gpu="1") > 0
        assert exporter.total("carme_collector_value_errors_total", value="lost") > 0
    finally:
        cluster.run(fault)
    exporter.fresh()
    assert exporter.total("carme_gpu_lost") == 0


def test_top_shows_a_user_only_the_own_jobs(cluster, node, exporter):
    ann, ben = cluster.users[:2]
    jobs = [submit(cluster, user, node, f"sleep {HELD_SECONDS}", *GPU) for user in (ann, ben)]
    try:
        wait_held(exporter, *jobs)
        command = ["carme", "top", "--json", "--run", str(exporter.run), "--node", node]

        def top(user):
            import json

            return {row["jobid"] for row in json.loads(cluster.run_as(user, command).stdout)}

        assert jobs[0] in top(ann)
        assert jobs[1] not in top(ann)
        assert set(jobs) <= top("root")
    finally:
        cluster.run(["scancel", *map(str, jobs)])
