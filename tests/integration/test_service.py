"""The prediction service on a live cluster: who may do what, and a real training loop."""

import os
import statistics
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
import requests

from carme.predict.measurements import parse_steps
from carme.prometheus import PrometheusClient
from support.cluster import wait_for
from support.people import SERVICE, Person, ask

pytestmark = pytest.mark.cluster

RESNET = {"workload": "resnet-50", "hardware": {"partition": "gpu", "gpu_type": "virtual-a100"}}
SHORT = {**RESNET, "plan": {"kind": "synchronous", "epochs": 0.01}}
"""Half a minute, by the data sheet."""
ONE_GPU = {
    "partition": "gpu", "gpus": 1, "gpu_type": "virtual-a100", "cpus": 1, "memory_gb": 1,
    "hours": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def people(cluster):
    return [Person(cluster, name) for name in (*cluster.users, cluster.admin)]


def test_the_part_is_well(cluster):
    assert cluster.is_healthy("service")


def test_login_goes_through_the_hub(people):
    ann, _, ada = people
    assert f">{ann.user.name}</span>" in ann.page
    assert f">{ada.user.name} (admin)</span>" in ada.page
    nobody = requests.get(f"{ann.url}{SERVICE}/plan", timeout=20)
    assert "/hub/login" in nobody.url


@pytest.fixture(scope="module")
def belongings(people):
    """One object of every kind that belongs to ann."""
    ann = people[0]
    workload = ann.by_token("GET", "/workloads/resnet-50").json()["workload"] | {"name": "mine"}
    assert ann.by_token("POST", "/workloads", workload).status_code == 201
    prediction = ann.by_token("POST", "/predictions", {**RESNET, "keep": True}).json()
    steps = [{"batch": 64, "seconds": 0.2}] * 3
    fitted = ann.by_token("POST", "/calibrations", {**RESNET, "steps": steps}).json()
    body = {**RESNET, "vary": {"batch": list(range(64, 184))}}
    task = ann.by_token("POST", "/pareto", body).json()
    return [
        f"/workloads/{workload['name']}",
        f"/predictions/{prediction['id']}",
        f"/calibrations/{fitted['id']}",
        f"/tasks/{task['id']}",
    ]


def test_nobody_reads_or_changes_what_is_not_theirs(people, belongings):
    ann, ben, ada = people
    for path in belongings:
        for how in (ann.by_token, ann.by_cookie):
            assert how("GET", path).status_code == 200, path
        for how in (ben.by_token, ben.by_cookie):
            for method in ("GET", "DELETE"):
                assert how(method, path).status_code == 404, (method, path)
        # Workloads and tasks are private; an admin sees predictions and calibrations only.
        sees = path.startswith(("/predictions", "/calibrations"))
        assert ada.by_token("GET", path).status_code == (200 if sees else 404)
        assert ada.by_token("DELETE", path).status_code in (403, 404)
        assert ann.by_token("GET", path).status_code == 200, path


def test_no_token_and_no_expired_one(cluster, people, belongings):
    ann = people[0]
    new_token = ann.user.api("POST", f"/users/{ann.user.name}/tokens", json={}).json()
    gone = new_token["token"]
    ann.user.api("DELETE", f"/users/{ann.user.name}/tokens/{new_token['id']}")
    late = ann.user.api("POST", f"/users/{ann.user.name}/tokens", json={"expires_in": 1}).json()
    time.sleep(1.5)  # the hub's clock counts, and nothing tells that it has run out
    lists = ["/predictions", "/calibrations", "/workloads", "/jobs", "/cluster", "/hardware"]
    for path in (*belongings, *lists):
        for token in ("", gone, late["token"], "nonsense"):
            response = ask(ann.url, "GET", path, token=token)
            assert response.status_code == 401, (path, token)
            assert response.headers["Content-Type"].startswith("application/problem+json")
    assert ann.by_cookie("POST", "/predictions", RESNET, csrf=False).status_code == 403
    assert ann.by_cookie("POST", "/predictions", RESNET).status_code == 200


def test_a_session_with_a_declared_workload(cluster, people):
    """Advice as in the form, then a start: the prediction is stored with the job, for its owner."""
    ann, ben, ada = people
    query = "&".join(f"{k}={v}" for k, v in {**ONE_GPU, "workload": "resnet-50"}.items())
    headers = ann.user.hub_headers()

    def advice():
        url = f"{ann.url}/hub/api/carme/advice?{query}"
        return ann.user.web.get(url, headers=headers, timeout=20).json()

    # After another test restarted the controller, the nodes take a while to return.
    wait_for(lambda: advice()["wait"]["starts_now"], 60, "a free GPU")
    first_advice = advice()
    assert first_advice["prediction"]["time"]["low"] < first_advice["prediction"]["time"]["high"]
    ann.user.start(**ONE_GPU, workload="resnet-50", epochs=1)
    try:
        [job] = cluster.jobs(ann.user.name)
        path = f"/jobs/{job['id']}"
        stored = wait_for(
            lambda: ann.by_token("GET", path).json().get("comparisons"), 30, "a kept prediction"
        )
        assert stored[0]["prediction"]["prediction"]["workload"] == "resnet-50"
        assert stored[0]["remaining"]["value"] > 0
        assert stored[0]["within"] is None
        assert ben.by_token("GET", path).status_code == 404
        assert ada.by_token("GET", path).status_code == 200
        items = ann.by_cookie("GET", "/jobs").json()["items"]
        assert int(job["id"]) in [item["id"] for item in items]
        assert {item["user"] for item in items} == {ann.user.name}
        assert ann.user.name not in ben.by_token("GET", "/jobs").text
    finally:
        ann.user.stop()


@pytest.mark.parametrize("away", ["stopped", "frozen"])
def test_the_form_goes_on_without_the_service(cluster, people, away):
    ann = people[0]
    with cluster.without("service", frozen=away == "frozen"):
        headers = ann.user.hub_headers()
        response = ann.user.web.get(
            f"{ann.url}/hub/api/carme/advice?partition=gpu&workload=resnet-50",
            headers=headers, timeout=20,
        )  # fmt: skip
        assert response.status_code == 503
        assert response.elapsed.total_seconds() < 2  # a second, and a loaded machine
        page = ann.user.web.get(f"{ann.url}/hub/spawn", timeout=30)
        assert 'id="workload"' in page.text
    wait_for(lambda: cluster.is_healthy("service"), 60, "the service again")


def judged(person):
    """How many predictions from data sheets were judged by time and by energy, of all users and
    tests."""
    items = person.by_token("GET", "/coverage").json()["items"]
    [counts] = [i for i in items if (i["kind"], i["source"]) == ("job", "data sheet")] or [None]
    return (counts["time_judged"], counts["energy_judged"]) if counts else (0, 0)


@pytest.fixture(scope="module")
def judged_before(people):
    return judged(people[1])


@pytest.fixture(scope="module")
def finished(cluster, people, judged_before):
    """A job of ann's on a GPU with a prediction made for it, that ran to its end."""
    ann = people[0]
    spin = "timeout 25 sh -c 'while :; do :; done'; true"
    line = ["sbatch", "--parsable", "--partition=gpu", "--gres=gpu:virtual-a100:1", "--mem=200",
            "--output=/dev/null", f"--wrap={spin}"]  # fmt: skip
    job = int(cluster.run_as(ann.user.name, line).stdout.strip())
    body = {**SHORT, "keep": True, "job_id": job, "calibration": "none"}
    wait_for(
        lambda: ann.by_token("POST", "/predictions", body).status_code == 200, 30, "it is queued"
    )
    wait_for(
        lambda: ann.by_token("GET", f"/jobs/{job}").json()["job"]["state"] == "COMPLETED"
        and ann.by_token("GET", f"/jobs/{job}").json()["job"]["measured"], 120, "its figures",
    )  # fmt: skip
    return job


@pytest.mark.timeout(300)
def test_a_job_that_ran_gives_coefficients_from_history(people, finished):
    ann, ben, _ = people
    body = {**RESNET, "job_id": finished}  # its epochs stand in the prediction that was kept
    assert ben.by_token("POST", "/calibrations", body).status_code == 404
    other = {**body, "workload": "bert-base"}
    assert "did not run" in ann.by_token("POST", "/calibrations", other).json()["detail"]
    response = ann.by_token("POST", "/calibrations", body)
    assert response.status_code == 201, response.text
    provenance = response.json()["knowledge"]["provenance"]
    assert provenance["source"] == "history"
    assert str(finished) in provenance["words"]
    assert "power" not in provenance["unseen"]
    prediction = ann.by_token("POST", "/predictions", SHORT).json()["prediction"]
    assert prediction["provenance"]["calibration"] == response.json()["id"]
    job = ann.by_token("GET", f"/jobs/{finished}").json()["job"]
    assert prediction["time"]["value"] == pytest.approx(job["elapsed_seconds"], rel=0.05)
    watts = job["measured"]["joules"]["gpu"] / job["measured"]["gpu_held_seconds"]
    plain = ann.by_token("POST", "/predictions", {**SHORT, "calibration": "none"}).json()
    sheet = plain["prediction"]["average_gpu_power"]["value"]
    # A virtual GPU may draw less than the bounds of the coefficient allow.
    assert abs(prediction["average_gpu_power"]["value"] - watts) < 0.2 * abs(sheet - watts)


def test_steps_of_a_job_get_the_power_that_prometheus_has(people, finished):
    ann = people[0]
    steps = [{"batch": 256, "seconds": 0.5}] * 3
    response = ann.by_token("POST", "/calibrations", {**RESNET, "job_id": finished, "steps": steps})
    assert response.status_code == 201, response.text
    provenance = response.json()["knowledge"]["provenance"]
    assert provenance["source"] == "fit"
    assert "power" not in provenance["unseen"]
    ann.by_token("DELETE", f"/calibrations/{response.json()['id']}")


TRAIN = Path(__file__).parents[1] / "support/train.py"
BASE = (2, 128)
"""Workers and batch: the least that shows communication, 64 samples each."""
FITTED = ((2, 64), (2, 256))
"""What is tracked for the fit, ten steps each: half and twice the samples of BASE. One batch alone
cannot tell what grows with the samples from what does not."""
FOUR_TARGETS = [(1, 16), (1, 256), (4, 64), (4, 1024)]
"""Set before any trial: half and twice the workers, a quarter and four times the samples of each.
Those with more workers than the machine has cores are not judged: workers that take turns are not
the cores that were asked for."""
TARGETS = [run for run in FOUR_TARGETS if run[0] <= (os.cpu_count() or 1)]
TRIALS = 7


@pytest.fixture(scope="module")
def train(cluster, people):
    """`train()`: 20 tracked steps of a real loop at BASE and at each target, in a job of ann's."""
    name = people[0].user.name
    folder = Path(f"/home/{name}/train")
    cluster.run_as(name, ["mkdir", "-p", str(folder)])
    cluster.run_as(name, ["tee", str(folder / "train.py")], input=TRAIN.read_text())
    runs = (BASE, *FITTED, *TARGETS)
    run_options = [word for run in runs for word in ("--run", "x".join(map(str, run)))]

    def run():
        csv_file = folder / "steps.csv"
        job = cluster.run_as(
            name,
            ["srun", "--partition=cpu", "--cpus-per-task=4", "--mem=2G", "--time=5",
             sys.executable, str(folder / "train.py"), *run_options, "--out", str(csv_file)],
            timeout=280,
        )  # fmt: skip
        assert job.returncode == 0, job.stderr
        return parse_steps(cluster.run(["cat", str(csv_file)]).stdout, str(csv_file))

    return run


def at(steps, run):
    """The steps with this number of workers and this batch."""
    return [step for step in steps if (step.gpus, step.batch) == run]


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_a_fit_from_twenty_steps_predicts_other_batches_and_worker_counts(people, train):
    """Within 10 %, and better than scaling the mean step, at every target.

    Each trial has its own fit from its own twenty steps, and the middle error counts.
    """
    ann = people[0]
    network = tomllib.loads(TRAIN.with_name("mlp.toml").read_text()) | {"name": "mlp"}
    assert ann.by_token("POST", "/workloads", network).status_code == 201
    workload_and_hardware = {"workload": "mlp", "hardware": {"partition": "cpu", "count": 4}}
    # Every worker reads all gradients and the mean, for any number of workers: a tree's traffic.
    how = {"overlap": False, "all_reduce": "tree"}
    errors, scaled_errors = defaultdict(list), defaultdict(list)
    for _ in range(TRIALS):
        tracked = train()
        base = at(tracked, BASE)
        assert len(base) == 20
        twenty = [step for run in FITTED for step in at(tracked, run)[:10]]
        assert len(twenty) == 20
        body = {
            **workload_and_hardware,
            "plan": how,
            "steps": [step.model_dump() for step in twenty],
        }
        fitted = ann.by_token("POST", "/calibrations", body)
        assert fitted.status_code == 201, fitted.text
        mean = statistics.fmean(step.seconds for step in base)
        for workers, batch in TARGETS:
            plan = {"kind": "synchronous", "gpus": workers, "batch": batch, **how}
            response = ann.by_token(
                "POST", "/predictions", {**workload_and_hardware, "plan": plan}
            ).json()
            prediction = response["prediction"]
            assert prediction["provenance"]["calibration"] == fitted.json()["id"]
            measured = statistics.median(s.seconds for s in at(tracked, (workers, batch)))
            error = prediction["step_time"]["value"] / measured - 1
            scaled = mean * (batch / workers) / (BASE[1] / BASE[0]) / measured - 1
            errors[workers, batch].append(error)
            scaled_errors[workers, batch].append(scaled)
            print(
                f"{workers} x {batch}: measured {measured:.4f} s,"
                f" fit {error:+.1%}, scaled mean step {scaled:+.1%}"
            )
    for run, run_errors in errors.items():
        assert abs(statistics.median(run_errors)) < 0.10, run
        assert abs(statistics.median(run_errors)) < abs(statistics.median(scaled_errors[run])), run


@pytest.mark.timeout(300)
def test_how_often_intervals_held_is_told(cluster, people, judged_before, finished):
    """The counts include a job half a minute after its last measurements."""

    def counted():
        return all(
            now > before for now, before in zip(judged(people[1]), judged_before, strict=True)
        )

    wait_for(counted, 150, "the outcome")
    settings = cluster.config.prometheus
    series = 'carme_service_predictions_judged{kind="job",source="data sheet",figure="time"}'
    prometheus = PrometheusClient.of(settings.url, settings.login_file)

    def is_exported():
        rows = prometheus.query(series)
        return sum(row.value for row in rows) == judged(people[1])[0]

    wait_for(is_exported, 60, "Prometheus has the counts")
