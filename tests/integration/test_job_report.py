"""Known loads of three users: `carme job`, rules and dashboards report them within 2 %."""

import json
import time
from collections import defaultdict

import pytest

from carme.prometheus import PrometheusClient
from carme_monitoring.dashboards.check import Checker
from carme_monitoring.dashboards.model import BOARDS, PROFILE_BOARDS, RECORDED
from support.cluster import wait_for
from support.exporter import Exporter, submit, wait_ended
from support.people import Person

SPIN = "timeout {0} sh -c 'while :; do :; done'; true"
WAVES = "while :; do timeout 1 sh -c 'while :; do :; done'; sleep 1; done"
EATS = "sleep 20; python3 -c 'x = bytearray(600 * 2**20); import time; time.sleep(60)'"
ONE = ("--gres=gpu:1", "--mem=200", "-t", "10")
HERE = {"jobs", "waiting", "gpus", "profile", "emissions", "price", "predictions"}
RESNET = {"workload": "resnet-50", "hardware": {"partition": "gpu", "gpu_type": "virtual-a100"}}


class Loads:
    """The jobs and their reports."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.nodes = [node.name for node in cluster.config.local.nodes if node.gpus][:2]
        self.exporters = [Exporter(cluster, node) for node in self.nodes]
        settings = cluster.config.prometheus
        self.prometheus = PrometheusClient.of(settings.url, settings.login_file)
        self.ids = {}
        self.owners = {}

    def submit(self, name, user, script, *options):
        self.owners[name] = user
        self.ids[name] = submit(self.cluster, user, self.nodes[0], script, *options)

    def done_joules(self, name):
        """The joules in the virtual GPUs' own record, over all nodes."""
        return sum(exporter.recorded_joules(self.ids[name]) for exporter in self.exporters)

    def report(self, name, user=None):
        command = ["carme", "job", str(self.ids[name]), "--json"]
        result = self.cluster.run_as(user or self.owners[name], command)
        return json.loads(result.stdout) if result.stdout else {"error": result.stderr}

    def value(self, expression):
        rows = self.prometheus.query(expression)
        return sum(row.value for row in rows) if rows else None

    def charged(self):
        """GPU energy by user so far: counters that live as long as the node."""
        joules = defaultdict(float)
        for row in self.prometheus.query(
            'sum by (user) (carme_owner_energy_joules_total{component="gpu"})'
        ):
            joules[row.labels["user"]] = row.value
        return joules


def predict(person, job_id):
    """Store a prediction of the service for the job."""
    body = {**RESNET, "keep": True, "job_id": job_id}
    wait_for(
        lambda: person.by_token("POST", "/predictions", body).status_code == 200 or time.sleep(1),
        30, "a prediction for the job",
    )  # fmt: skip


@pytest.fixture(scope="module")
def loads(cluster):
    """Run all jobs; restart Prometheus while they run."""
    ann, ben, ada = (*cluster.users[:2], cluster.admin)
    load_jobs = Loads(cluster)
    wait_for(lambda: load_jobs.value('sum(up{job="carme"})'), 60, "Prometheus reads the exporters")
    load_jobs.before = load_jobs.charged()
    person = Person(cluster, ann)
    load_jobs.submit("predicted", ann, "sleep 15", *ONE)
    predict(person, load_jobs.ids["predicted"])
    load_jobs.submit("idle", ann, "sleep 45", *ONE)
    load_jobs.submit("hungry", ben, EATS, "--gres=gpu:1", "--mem=300", "-t", "10")
    two_nodes = ("-N2", "--ntasks-per-node=1", "-w", ",".join(load_jobs.nodes), *ONE)
    load_jobs.submit("pair", ada, f'srun sh -c "{SPIN.format(40)}"', *two_nodes)
    load_jobs.submit("plain", ben, "sleep 30", "--mem=100", "-t", "5", "-c", "2")
    # These run, or wait, while the dashboards are checked.
    load_jobs.submit("waves", ada, WAVES, "--comment=carme-profile", *ONE)
    load_jobs.submit("waiting", ben, "true", "--gres=gpu:4", "--mem=100", "-t", "5")
    time.sleep(15)
    before = cluster.pid("prometheus")
    cluster.stop("prometheus")
    cluster.start("prometheus")
    wait_for(lambda: cluster.pid("prometheus") not in (0, before), 30, "Prometheus is back")
    load_jobs.submit("short", ann, SPIN.format(2), *ONE)
    yield load_jobs
    cluster.run(["scancel", *map(str, load_jobs.ids.values())])


def test_the_dashboards_while_jobs_run(cluster, loads):
    """Every panel and variable has data, except for absent hardware and events."""
    boards = [*BOARDS, *PROFILE_BOARDS.values()]
    last, timings = [], {}
    series = f'carme_prediction_seconds{{jobid="{loads.ids["predicted"]}"}}'

    def all_fine():
        last[:] = Checker(loads.prometheus, required=HERE).check(boards)
        timings.update((row.labels["kind"], row.value) for row in loads.prometheus.query(series))
        return ("measured" in timings and all(r.is_fine for r in last)) or time.sleep(5)

    try:
        # The outcome of a prediction is known 90 s after its job.
        wait_for(all_fine, 240, "every query has an answer")
    finally:
        for result in last:
            print(f"{result.status:9}{result.rows:5} {result.milliseconds:5.0f} ms"
                  f"  {result.board}: {result.panel} {result.note}")  # fmt: skip
    absent = {result.needs for result in last if result.status == "not here"}
    assert absent <= RECORDED | {"alerts", "failures", "rolled-up"}
    assert timings["low"] < timings["predicted"] < timings["high"]
    assert 14 <= timings["measured"] <= 30


def test_a_running_job_and_a_waiting_one(cluster, loads):
    running = wait_for(
        lambda: (report := loads.report("waves")).get("measured") and report, 60, "its figures"
    )
    assert running["state"] == "RUNNING"
    assert running["ended_at"] is None
    assert running["measured"]["joules"]["gpu"] > 0
    waiting = loads.report("waiting")
    assert (waiting["state"], waiting["measured"]) == ("PENDING", None)


def test_reports_rules_and_dashboards_agree_with_what_was_done(cluster, loads):
    cluster.run(["scancel", str(loads.ids["waiting"]), str(loads.ids["waves"])])
    first, second = loads.exporters
    wait_ended(
        cluster, first, *(loads.ids[name] for name in ("idle", "hungry", "pair", "short", "waves"))
    )
    wait_ended(cluster, second, loads.ids["pair"])
    ended = max(exporter.fresh() for exporter in loads.exporters)
    newest = "min(carme_exporter_collected_timestamp_seconds)"
    wait_for(lambda: (loads.value(newest) or 0) >= ended, 60, "Prometheus has the last values")
    time.sleep(cluster.config.prometheus.evaluation_seconds)  # the rules, once more
    gained = loads.charged()
    energy = next(
        p for b in BOARDS if b.uid == "carme-job" for p in b.panels if p.title == "Energy"
    )
    for name in ("idle", "hungry", "pair", "short"):
        result, jobid = loads.done_joules(name), str(loads.ids[name])
        assert result > 50
        reports = wait_for(
            lambda name=name: (r := loads.report(name)).get("ended_at") and r, 40, "the accounting"
        )
        near = pytest.approx(result, rel=0.02)
        assert sum(reports["measured"]["joules"].values()) == near
        assert loads.value(f'job:carme_energy_joules:last{{jobid="{jobid}"}}') == near
        assert loads.value(energy.queries[0].expr.replace("$jobid", jobid)) == near
        grams = reports["measured"]["emissions_grams"]
        factor = cluster.config.exporter.emissions_grams_per_kwh
        assert grams == pytest.approx(result / 3.6e6 * factor, rel=0.02)
        cost = cluster.config.exporter.price_per_kwh * result / 3.6e6
        assert reports["measured"]["cost"]["EUR"] == pytest.approx(cost, rel=0.02)
    for user in {loads.owners[name] for name in ("idle", "hungry", "pair")}:
        own = [name for name, owner in loads.owners.items() if owner == user and name != "waiting"]
        result = sum(loads.done_joules(name) for name in own)
        assert gained[user] - loads.before[user] == pytest.approx(result, rel=0.02), (
            "short jobs too are in the totals"
        )


def test_the_reports_say_what_went_wrong(cluster, loads):
    idle = loads.report("idle")
    assert idle["elapsed_seconds"] >= 44
    # Prolog and epilog, which start and end an allocation, are slow on a busy machine.
    for name in ("gpu_idle_seconds", "gpu_held_seconds"):
        assert idle["measured"][name] == pytest.approx(idle["elapsed_seconds"], abs=3)
    assert "No GPU did anything" in json.dumps(idle["advice"])
    hungry = loads.report("hungry")
    assert hungry["state"] == "OUT_OF_MEMORY"
    assert "ran out of memory" in json.dumps(hungry["advice"])
    pair = loads.report("pair")
    assert sorted(pair["measured"]["joules_by_node"]) == loads.nodes
    assert pair["measured"]["gpu_idle_seconds"] < 0.2 * pair["measured"]["gpu_held_seconds"]
    assert pair["power_plot"]["values"]
    plain = loads.report("plain")
    assert plain["asked"]["gpus"] == {}
    assert plain["measured"]["gpu_held_seconds"] in (None, 0)
    assert plain["measured"]["memory_peak_bytes"] > 0


def test_jobs_lists_what_one_may_see(cluster, loads):
    def job_list(user, *options):
        result = cluster.run_as(user, ["carme", "jobs", "--json", "-n", "500", *options])
        assert result.returncode == 0, result.stderr
        return {job["id"]: job for job in json.loads(result.stdout)["jobs"]}

    ann, ben, ada = (*cluster.users[:2], cluster.admin)
    ids = loads.ids
    hers = job_list(ann)
    assert {ids["idle"], ids["short"]} <= hers.keys()
    assert {job["user"] for job in hers.values()} == {ann}
    assert sum(hers[ids["idle"]]["measured"]["joules"].values()) == pytest.approx(
        loads.done_joules("idle"), rel=0.02
    )
    assert set(ids.values()) <= job_list(ada).keys()
    assert {job["user"] for job in job_list(ada, "-u", ben).values()} == {ben}
    dead = job_list(ben, "--state", "out_of_memory", "--partition", "gpu", "--since", "1h")
    assert ids["hungry"] in dead
    assert ids["plain"] not in dead
    table = cluster.run_as(ada, ["carme", "jobs", "--csv"]).stdout
    assert f"\n{ids['pair']}," in table


def test_bad_input_and_other_peoples_jobs(cluster, loads):
    ann, ben = cluster.users[:2]

    def error_output(user, *arguments):
        result = cluster.run_as(user, ["carme", *arguments])
        assert result.returncode == 1
        return result.stderr

    unknown = error_output(ann, "job", "59999999")
    others = error_output(ann, "job", str(loads.ids["hungry"]))
    assert others == unknown.replace("59999999", str(loads.ids["hungry"]))
    assert "is not the number of a job" in error_output(ann, "job", "1; id")
    assert "is not a time" in error_output(ann, "jobs", "--since", "yesterday")
    assert "no state" in error_output(ann, "jobs", "--state", "odd")
    assert ben not in cluster.run_as(ann, ["carme", "jobs", "-u", ben]).stdout
    # Only the view can read the login for Prometheus.
    login = cluster.config.prometheus.login_file
    assert cluster.run_as(ann, ["cat", str(login)]).returncode != 0
    assert "cannot be read" in error_output(ann, "dashboards", "check")


def test_without_prometheus_slurms_figures_are_shown(cluster, loads):
    cluster.stop("prometheus")
    try:
        ann = cluster.users[0]
        result = cluster.run_as(ann, ["carme", "job", str(loads.ids["idle"])])
        assert result.returncode == 3
        assert "Prometheus does not answer" in result.stdout
        assert "virtual" in result.stdout
        assert loads.report("idle")["elapsed_seconds"] >= 44
        result = cluster.run_as(ann, ["carme", "jobs"])
        assert result.returncode == 0
        assert "Prometheus does not answer" in result.stdout
    finally:
        cluster.start("prometheus")
    wait_for(lambda: cluster.is_healthy("prometheus"), 60, "Prometheus is back")
