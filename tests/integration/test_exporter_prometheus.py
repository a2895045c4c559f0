"""The exporters' series in Prometheus: joins, the controller's metrics, profiles."""

import json
import time

import pytest
import requests

from support.cluster import wait_for
from support.exporter import Exporter, submit

WAVE = "while :; do timeout 1 sh -c 'while :; do :; done'; sleep 1; done"
GPU = ("--gres=gpu:1", "--mem=100", "-t", "5")


@pytest.fixture(scope="module")
def query(cluster):
    """Answers of the cluster's Prometheus."""
    secrets = json.loads((cluster.dir / "etc/secrets/secrets.json").read_text())
    url = f"http://127.0.0.1:{cluster.config.local.ports.prometheus}/api/v1/query"

    def ask(expression):
        login = ("carme", secrets["prometheus_password"])
        response = requests.get(url, params={"query": expression}, auth=login, timeout=10)
        assert response.status_code == 200, response.text
        return response.json()["data"]["result"]

    return ask


@pytest.fixture(scope="module")
def job(cluster):
    """A job in waves that asked for a profile."""
    node = next(entry.name for entry in cluster.config.local.nodes if entry.gpus)
    jobid = submit(cluster, cluster.users[0], node, WAVE, "--comment=carme-profile", *GPU)
    yield Exporter(cluster, node), jobid
    cluster.run(["scancel", str(jobid)])


def test_every_exporter_is_scraped(cluster, query):
    names = {entry.name for entry in cluster.config.local.nodes}
    wait_for(
        lambda: {row["metric"]["instance"] for row in query('up{job="carme"} == 1')} == names,
        60,
        "Prometheus reads every exporter",
    )
    assert [row["value"][1] for row in query('up{job="carme-controller"}')] == ["1"]


def test_energy_by_user_is_one_join(cluster, query, job):
    _, jobid = job
    join = (
        f'sum by (user) (carme_job_energy_joules_total{{jobid="{jobid}"}}'
        " * on (jobid, node) group_left (user) carme_job_info)"
    )
    [row] = wait_for(lambda: query(join), 60, "the job's energy is in Prometheus")
    assert row["metric"] == {"user": cluster.users[0]}
    assert float(row["value"][1]) > 0


def test_the_controller_counts_the_job(cluster, query, job):
    counted = (
        f'carme_slurm_job_gpus{{user="{cluster.users[0]}",state="running",partition="gpu"}} >= 1'
    )
    wait_for(lambda: query(counted), 90, "the running job is counted")
    gpus = {row["metric"]["state"]: float(row["value"][1])
            for row in query("sum by (state) (carme_slurm_gpus)")}  # fmt: skip
    assert sum(gpus.values()) == sum(n.gpus.count for n in cluster.config.local.nodes if n.gpus)
    assert query("carme_slurm_scheduler_threads")


def test_a_profile_shows_the_waves(job):
    exporter, jobid = job
    time.sleep(12)
    exporter.fresh()
    for name in ("burst_duration_seconds", "burst_pause_seconds"):
        value = exporter.total(f"carme_job_{name}", jobid=str(jobid), signal="gpu")
        assert value == pytest.approx(1.0, abs=0.5)
    amount = exporter.total("carme_job_burst_amount", jobid=str(jobid), signal="gpu")
    assert 0.02 < amount < 1.6  # less than a second of work where the machine is busy
