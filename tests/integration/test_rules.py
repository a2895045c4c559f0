"""Rules, discovery, alerts and access on the live cluster."""

import json
import re
import sys
import time
from dataclasses import dataclass

import pytest
import requests
import yaml

from carme.templates import prometheus_rules
from support.cluster import wait_for
from support.exporter import Exporter, Series, submit, wait_ended
from support.prometheus import Prometheus

BUSY = "timeout {0} sh -c 'while :; do :; done'"
GPU = ("--gres=gpu:1", "--mem=100", "-t", "5")


@pytest.fixture(scope="module")
def prometheus(cluster):
    client = Prometheus(cluster)
    names = {node.name for node in cluster.config.local.nodes}
    wait_for(
        lambda: set(client.by("node", 'up{job="carme"} == 1')) == names,
        60,
        "all exporters are read",
    )
    return client


@pytest.fixture(scope="module")
def exporters(cluster):
    return [Exporter(cluster, node.name) for node in cluster.config.local.nodes if node.gpus]


@pytest.fixture(scope="module")
def jobs(cluster, prometheus, exporters):
    """An idle holder, a job on two nodes, one that dies of memory and one of two seconds.

    Prometheus is started again while they run.
    """
    (ann, ben), ada = cluster.users[:2], cluster.admin
    first, second = (exporter.node for exporter in exporters[:2])
    job_ids = {
        "idle": submit(cluster, ann, first, "sleep 35", *GPU),
        "two nodes": submit(
            cluster, ben, f"{first},{second}", f'srun -l sh -c "{BUSY.format(30)}"', "-N2", *GPU
        ),
        "memory": submit(
            cluster, ann, second, f"{sys.executable} -c 'b = bytearray(300_000_000)'", *GPU
        ),
        "short": submit(cluster, ada, second, BUSY.format(2), *GPU),
    }
    on_one = [job_ids["idle"], job_ids["two nodes"]]
    wait_for(lambda: exporters[0].total("carme_job_gpu_held") >= 2, 60, "the jobs run")
    cluster.stop("prometheus")
    cluster.start("prometheus")
    wait_ended(cluster, exporters[0], *on_one, seconds=120)
    wait_ended(cluster, exporters[1], *(set(job_ids.values()) - {job_ids["idle"]}), seconds=120)
    for exporter in exporters:
        exporter.fresh()
    return {name: str(jobid) for name, jobid in job_ids.items()}


@dataclass
class ExporterTotals:
    """The exporters' final values, and a time at which the rules include them."""

    at: float
    pages: list[Series]

    def total(self, name, **labels):
        required = set(labels.items())
        return sum(
            value
            for page in self.pages
            for (metric, series_labels), value in page.items()
            if metric == name and required <= series_labels
        )


@pytest.fixture(scope="module")
def exporter_totals(cluster, prometheus, exporters, jobs):
    def owners_are_complete():
        """New owners show zero at first."""
        pages = ExporterTotals(0, [exporter.series() for exporter in exporters])
        used = pages.total("carme_job_energy_joules_total")
        return used > 0 and pages.total("carme_owner_energy_joules_total") >= 0.999 * used and pages

    totals = wait_for(owners_are_complete, 120, "owners' counters have the jobs' energy")
    settings = cluster.config.prometheus
    totals.at = time.time() + settings.scrape_seconds + settings.evaluation_seconds + 2
    name = "cluster:carme_energy_joules:increase5m"
    wait_for(
        lambda: (prometheus.value(f"max(timestamp({name}))") or 0) > totals.at, 60, "rules are done"
    )
    return totals


def test_rules_agree_with_the_exporters_and_with_what_was_done(
    prometheus, exporters, jobs, exporter_totals
):
    figures = ("energy_joules", "gpu_held_seconds", "gpu_idle_seconds", "emissions_grams", "cost")
    for name, jobid in jobs.items():
        for figure in figures:
            ruled = prometheus.value(
                f'job:carme_{figure}:last{{jobid="{jobid}"}}', exporter_totals.at
            )
            counted = exporter_totals.total(f"carme_job_{figure}_total", jobid=jobid)
            assert ruled == pytest.approx(counted, rel=0.02, abs=1e-6), (name, figure)
        gpu = prometheus.value(
            f'job_component:carme_energy_joules:last{{jobid="{jobid}",component="gpu"}}',
            exporter_totals.at,
        )
        spent = sum(exporter.recorded_joules(int(jobid)) for exporter in exporters)
        assert spent > 1, name  # one second of an idle GPU is more: something was recorded
        # A joule is 20 ms of an idle GPU: how exactly the hook reads begin and end on a busy host.
        assert gpu == pytest.approx(spent, rel=0.02, abs=1), name
    idle = prometheus.value(
        f'job:carme_gpu_idle_ratio:last{{jobid="{jobs["idle"]}"}}', exporter_totals.at
    )
    assert idle > 0.9


@pytest.mark.parametrize("level", ["user", "account", "partition"])
def test_totals_of_people_have_every_job(cluster, prometheus, exporter_totals, level):
    at = exporter_totals.at
    ruled = prometheus.by(level, f"{level}:carme_energy_joules:increase5m", at)
    before = prometheus.by(
        level,
        f"sum by ({level}) (last_over_time(carme_owner_energy_joules_total[10m] offset 5m))",
        at,
    )
    whose = {
        "user": {*cluster.users[:2], cluster.admin},
        "account": {row["metric"]["account"] for row in prometheus.rows("carme_job_info", at)},
        "partition": {"gpu"},
    }[level]
    for who in whose:
        now = exporter_totals.total("carme_owner_energy_joules_total", **{level: who})
        assert now > 0
        assert ruled[who] == pytest.approx(now - before.get(who, 0), rel=0.02), who
    power = prometheus.by(level, f"{level}:carme_power_watts:avg5m", at)
    assert power == {who: pytest.approx(joules / 300, rel=0.001) for who, joules in ruled.items()}


def test_a_job_of_two_seconds_is_in_its_users_total(cluster, prometheus, jobs, exporter_totals):
    used = exporter_totals.total("carme_job_energy_joules_total", jobid=jobs["short"])
    total = f'user:carme_energy_joules:increase5m{{user="{cluster.admin}"}}'
    assert 0 < used <= prometheus.value(total, exporter_totals.at) * 1.02


def test_what_the_rules_ask_for_is_there(prometheus, exporter_totals):
    """No rule fails, and the series of all levels exist, including those of other programs."""
    assert prometheus.rows("prometheus_rule_evaluation_failures_total > 0") == []
    records = [
        rule["record"]
        for group in yaml.safe_load(prometheus_rules("recording.yml"))["groups"]
        for rule in group["rules"]
    ]
    rows = prometheus.rows('{__name__=~".+:.+"}', exporter_totals.at)
    # These series exist for running jobs only; all jobs here have ended.
    ended = {"job:carme_power_watts:avg5m", "job:carme_gpu_utilisation_ratio:avg5m"}
    hourly_names = {row["metric"]["__name__"] for row in rows}
    assert {name for name in records if not name.endswith("1h")} - ended <= hourly_names
    expected = {name for name in records if name.endswith("1h")}

    def hours_are_there():
        """They are evaluated every minute, and ratios need something to be a part of."""
        now = prometheus.rows('{__name__=~".+:.+1h"}')
        return expected <= {row["metric"]["__name__"] for row in now} or time.sleep(2)

    wait_for(hours_are_there, 150, "the hour's rules")
    for name in ("carme_exporter_time_seconds", "prometheus_sd_file_mtime_seconds"):
        assert prometheus.rows(name)
    for job in ("hub", "prometheus", "alertmanager", "carme-controller", "carme-service"):
        assert prometheus.value(f'up{{job="{job}"}}') == 1
    assert prometheus.value("carme_slurm_accounting_up") == 1
    skew = "max(abs(carme_exporter_time_seconds - timestamp(carme_exporter_time_seconds)))"
    assert prometheus.value(skew) < 2


def test_a_node_that_leaves_slurm_leaves_discovery(cluster, prometheus):
    leaver = cluster.config.local.nodes[-1].name
    file = cluster.config.prometheus.targets

    def discovered():
        return {group["labels"]["node"] for group in json.loads(file.read_text())}

    everyone = {node.name for node in cluster.config.local.nodes}
    assert discovered() == everyone
    # While the view is down, discovery removes no node.
    cluster.stop("view")
    try:
        cluster.run(["scontrol", "update", f"nodename={leaver}", "state=future"])
        log = cluster.dir / "log/discovery.log"
        wait_for(lambda: "stay as they are" in log.read_text(), 60, "discovery notices")
        assert discovered() == everyone
    finally:
        cluster.start("view")
    try:
        wait_for(lambda: discovered() == everyone - {leaver}, 90, "the node leaves")
        wait_for(
            lambda: leaver not in prometheus.by("node", 'up{job="carme"}'), 60, "it is not read"
        )
    finally:
        for state in ("resume", "idle"):
            cluster.run(["scontrol", "update", f"nodename={leaver}", f"state={state}"])
    wait_for(lambda: discovered() == everyone, 120, "it comes back")
    wait_for(lambda: cluster.is_healthy(f"slurmd-{leaver}"), 120, "Slurm uses it again")


def test_an_alert_reaches_alertmanager(cluster, prometheus, exporters):
    user, node = cluster.users[0], exporters[0].node
    jobid = submit(cluster, user, node, "sleep 300", "--mem=50", "-t", "10")
    try:

        def told_of():
            return [
                alert
                for alert in prometheus.alerts()
                if alert["labels"]["alertname"] == "JobNearWalltime"
                and alert["labels"]["jobid"] == str(jobid)
            ]

        [alert] = wait_for(told_of, 120, "Alertmanager knows")
        assert re.match(f"Job {jobid} of {user} ends in", alert["annotations"]["summary"])
        assert alert["annotations"]["runbook_url"].endswith("JobNearWalltime.md")
        assert [receiver["name"] for receiver in alert["receivers"]] == ["none"]
    finally:
        cluster.run(["scancel", str(jobid)])


SNOOP = """
import json, os, sys, urllib.error, urllib.request
urls, folders = json.loads(sys.argv[1])
answered, readable = [], []
for url in urls:
    try:
        answered.append((url, urllib.request.urlopen(url, timeout=5).status))
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            answered.append((url, error.code))
for top in folders:
    for folder, _, names in os.walk(top):
        for name in names:
            if os.access(os.path.join(folder, name), os.R_OK):
                readable.append(os.path.join(folder, name))
print(json.dumps([answered, readable]))
"""


@pytest.mark.parametrize("where", ["head node", "compute node"])
def test_a_plain_user_reads_no_metric_of_anybody(cluster, prometheus, exporters, where):
    layout, ports = cluster.local.layout, cluster.local.layout.ports()
    urls = [
        f"http://127.0.0.1:{port}{path}"
        for part, port in ports.items()
        for path in ("/metrics", "/api/v1/query?query=up", "/federate?match[]=up", "/api/v2/alerts")
        if part.startswith(("exporter", "prometheus", "alertmanager"))
    ]
    urls.append(f"http://127.0.0.1:{cluster.config.hub.api_port}/hub/metrics")
    urls.append(f"{cluster.config.hub.url}/hub/metrics")
    urls.append(f"http://127.0.0.1:{cluster.config.service.port}/services/carme/metrics")
    urls.append(f"{cluster.config.hub.url}/services/carme/metrics")
    folders = [
        layout.secrets,
        *(layout.etc / name for name in ("prometheus", "exporter")),
        *(layout.state / name for name in ("prometheus", "alertmanager", "exporter")),
        layout.config.prometheus.targets.parent,
        layout.gpu_allocations / "jobs",
    ]
    assert all(folder.exists() for folder in folders)
    argument = json.dumps([urls, [str(folder) for folder in folders]])
    command = [sys.executable, "-c", SNOOP, argument]
    if where == "compute node":
        command = [
            "srun",
            "-w",
            exporters[0].node,
            "--gres=gpu:1",
            "--mem=100",
            "-t",
            "2",
            *command,
        ]
    result = cluster.run_as(cluster.users[0], command)
    assert result.returncode == 0, result.stderr
    answered, readable = json.loads(result.stdout)
    assert answered == []
    assert readable == []
    # The same requests succeed with the credentials, so the URLs are right.
    assert prometheus.rows("up")
    assert requests.get(f"{prometheus.url}/metrics", timeout=10).status_code == 401
