"""One user cannot make the service slow for another, nor fill its memory and its database."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from carme import library
from carme.errors import InputError, MissingError, UnavailableError
from carme.predict import fit
from carme.predict.simulation_limits import check_prediction
from carme.refusal_metrics import RefusalMetrics
from carme.service import hub_client, outcomes, tasks
from carme.service.api.predictions import QUICK_MILLISECONDS
from carme.service.api.workloads import store_workload
from carme.service.hub_client import Caller
from carme.service.store import CalibrationRow, PredictionRow
from carme.simulator.plans import Synchronous
from carme.simulator.workload import Workload
from support.cluster import wait_for
from support.fair_use import waiting
from support.service import API, OWN, Service

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}}
STEPS = [{"batch": 64, "seconds": 0.2}] * 3
SLOW = {
    "averaging": {"plan": {"kind": "averaging", "gpus": 8, "packages": 100}},
    "bursts of a pipeline": {"plan": {"pipeline": 2, "gpus": 2}},
    "jitter at 4096 GPUs": {"plan": {"jitter": 0.1, "gpus": 8}, "scaling": True},
    "many gradient buckets": {"workload": "waveglow", "plan": {"bucket_bytes": 1, "gpus": 8}},
}
"""Predictions that take long."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(
        tmp_path_factory.mktemp("limits"), requests_at_once=3, stored_predictions=3,
        stored_calibrations=3, stored_workloads=2, tasks_per_user=1,
    )  # fmt: skip
    yield running
    running.close()


def assert_refused(answer, message):
    assert answer.status_code == 429, answer.text
    assert answer.json["reason"] == "busy"
    assert message in answer.json["detail"]
    assert answer.json["hint"]
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("what", ["fit", *SLOW])
def test_long_calculations_run_in_another_process(service, monkeypatch, what):
    """In this process they would stop all answers; a call of them here fails."""

    def fail(*_):
        pytest.fail("it runs in the process that answers")

    monkeypatch.setattr(fit._Fit, "calibration", fail)
    monkeypatch.setattr("carme.predict.prediction.simulate", fail)
    if what == "fit":
        answer = service.ask("POST", "/calibrations", body={**RESNET, "steps": STEPS})
        assert answer.status_code == 201, answer.text
    else:
        body = {**RESNET, **SLOW[what]}
        body["plan"].setdefault("kind", "synchronous")
        answer = service.ask("POST", "/predictions", body=body)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", library.names("workloads"))
def test_the_pages_predictions_are_quick(name):
    """With the next limit and the bursts, as the Plan page asks for several GPUs at once."""
    plan = Synchronous(gpus=8)
    milliseconds = check_prediction(plan, library.workload(name), scaling=True, detail=True)
    assert milliseconds <= QUICK_MILLISECONDS


def test_a_search_for_limits_has_no_more_random_numbers_than_a_plan(service):
    plan = {"kind": "synchronous", "jitter": 0.1, "sample_steps": 10_000, "gpus": 8}
    body = {**RESNET, "plan": plan}
    assert service.ask("POST", "/predictions", body=body).status_code == 200
    refused = service.ask("POST", "/predictions", body={**body, "scaling": True})
    assert refused.status_code == 422
    assert "random numbers for the jitter" in refused.json["detail"]


def test_a_fit_that_is_refused_says_why(service):
    steps = [{"batch": 64, "seconds": 80_000}] * 3
    answer = service.ask("POST", "/calibrations", body={**RESNET, "steps": steps})
    assert answer.status_code == 422
    assert "no coefficients within their bounds" in answer.json["detail"]


def test_fits_of_one_user_take_turns_with_those_of_others(service):
    gate = service.context.tasks.calculations
    body = {**RESNET, "steps": STEPS}
    pool = ThreadPoolExecutor(1)
    with gate.turn("ann"):  # has the only process
        tickets = [gate.enter("ann") for _ in range(tasks._CALLS_WAITING)]
        refused = service.ask("POST", "/calibrations", body=body)
        assert_refused(refused, "5 long calculations in progress")
        # A quick prediction needs no process.
        assert service.ask("POST", "/predictions", body=RESNET).status_code == 200
        ben = pool.submit(service.ask, "POST", "/calibrations", "ben", body)
        wait_for(lambda: "ben" in gate._queues, 10, "ben's fit waits")
    tickets[0].leave()  # the next of ann's has passed; then it is ben's turn
    assert ben.result(60).status_code == 201
    assert "ann" in gate._queues, "her other calls still wait"
    for ticket in tickets:
        ticket.leave()


def test_a_call_whose_process_dies(service):
    with pytest.raises(UnavailableError, match="a simulating process died"):
        service.context.tasks.call("ann", os._exit, 1)
    assert service.context.tasks.call("ann", str, 7) == "7"


def test_a_process_that_dies_fails_no_call_that_waits(service):
    calls, pool = service.context.tasks, ThreadPoolExecutor(1)
    with calls.calculations.turn("ann"):
        ben = pool.submit(calls.call, "ben", str, 7)
        wait_for(lambda: "ben" in calls.calculations._queues, 10, "ben's call waits")
        with pytest.raises(BrokenProcessPool):
            calls._running_pool().submit(os._exit, 1).result(60)
    assert ben.result(60) == "7"


def test_requests_in_progress_of_one_user(service):
    requests = service.context.requests
    tickets = [requests.enter("ann") for _ in range(3)]
    try:
        assert_refused(service.ask("GET", "/workloads"), "3 requests in progress")
        assert service.ask("GET", "/workloads", who="ben").status_code == 200
        # The hub asks for a user.
        headers = {"Authorization": f"token {OWN}", "Carme-User": "ann"}
        by_hub = service.client.get(f"{API}/workloads", headers=headers)
        assert by_hub.status_code == 429
    finally:
        for ticket in tickets:
            ticket.leave()
    assert service.ask("GET", "/workloads").status_code == 200
    assert service.ask("GET", "/predictions/none").status_code == 404, "gives its place back, too"
    assert not requests._held


def test_calculations_of_one_user_leave_places_to_others(service):
    gate = service.context.calculations
    tickets = [gate.enter("ann") for _ in range(2)]
    with waiting(gate, "ann"):
        assert service.ask("POST", "/predictions", who="ben", body=RESNET).status_code == 200
    for ticket in tickets:
        ticket.leave()


def test_questions_about_jobs_of_one_user_leave_places_to_others(service, monkeypatch):
    """Slurm's accounting hangs for ann; ben's page comes."""
    go, asked = threading.Event(), []
    monkeypatch.setattr("carme.service.api.jobs.TIMEOUT_SECONDS", 0.5)

    def reports(for_user, **_):
        asked.append(for_user)
        if for_user == "ann":
            go.wait(30)
        raise MissingError("there are none")

    monkeypatch.setattr(service.context.cluster.client, "reports", reports)
    try:
        for _ in range(4):
            assert service.ask("GET", "/jobs").status_code == 503
        assert service.ask("GET", "/jobs", who="ben").status_code == 404
        assert asked == ["ann", "ann", "ben"], "two of ann's hang, the view gets no more of them"
    finally:
        go.set()


def test_tasks_of_one_user(service):
    body = {**RESNET, "vary": {"batch": list(range(64, 9064))}}
    task = service.ask("POST", "/pareto", body=body).json["id"]
    assert_refused(service.ask("POST", "/pareto", body=body), "1 tasks in progress")
    assert service.ask("DELETE", f"/tasks/{task}").status_code == 200
    small = {**RESNET, "vary": {"batch": list(range(64, 264))}}
    task = service.ask("POST", "/pareto", body=small).json["id"]
    wait_for(lambda: service.ask("GET", f"/tasks/{task}").json["state"] == "done", 60, "the end")
    first, second = (service.ask("GET", f"/tasks/{task}").data for _ in range(2))
    assert first == second
    assert service.context.tasks.get("ann", task).result in first, "made once, not at every request"


def test_tasks_of_all_users_are_limited(service):
    running = service.context.tasks.running
    tickets = [running.enter(f"user {number}") for number in range(tasks._MAX_RUNNING)]
    body = {**RESNET, "vary": {"batch": list(range(64, 9064))}}
    try:
        refused = service.ask("POST", "/pareto", body=body)
        assert refused.status_code == 503
        assert "of other users" in refused.json["detail"]
    finally:
        for ticket in tickets:
            ticket.leave()


def test_results_of_all_users_do_not_fill_the_memory(service, monkeypatch):
    small = {**RESNET, "vary": {"batch": list(range(64, 264))}}
    made = []

    def is_kept(path, who):
        return service.ask("GET", path, who=who).status_code == 200

    for who in ("ann", "ben"):
        path = f"/tasks/{service.ask('POST', '/pareto', body=small, who=who).json['id']}"
        made.append((path, who))

        def is_done(path=path, who=who):
            answer = service.ask("GET", path, who=who)
            return answer.status_code == 200 and answer.json["state"] == "done"

        wait_for(is_done, 60, "the end")
        if who == "ann":
            size = len(service.context.tasks.get(who, path.rpartition("/")[2]).result)
            monkeypatch.setattr(tasks, "MAX_KEPT_BYTES", int(1.5 * size))
    wait_for(lambda: not is_kept(*made[0]), 10, "the oldest has gone")
    assert is_kept(*made[1])


def test_results_of_one_user_do_not_fill_the_memory(service, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_ENDED_BYTES", 100_000)
    small = {**RESNET, "vary": {"batch": list(range(64, 264))}}
    made = []
    for _ in range(4):
        task = service.ask("POST", "/pareto", body=small, who="ben").json["id"]
        path = f"/tasks/{task}"
        wait_for(lambda p=path: service.ask("GET", p, who="ben").json["state"] == "done", 60, "end")
        made.append(path)
    size = len(service.context.tasks.get("ben", task).result)
    assert 20_000 < size < 100_000, "so that some are kept, and some are not"
    kept = [service.ask("GET", path, who="ben").status_code == 200 for path in made]
    assert kept[-1]
    assert not kept[0]
    assert kept == sorted(kept), "the newest"


def test_the_oldest_predictions_go(service):
    made = []
    for _ in range(5):
        answer = service.ask("POST", "/predictions", body={**RESNET, "keep": True})
        made.append(answer.json["id"])
    service.ask("POST", "/predictions", body={**RESNET, "keep": True}, who="ben")
    listed = [item["id"] for item in service.ask("GET", "/predictions").json["items"]]
    assert listed == made[:1:-1], "the newest three"
    assert len(service.ask("GET", "/predictions", who="ben").json["items"]) == 1


def test_the_oldest_superseded_calibrations_go(service):
    store = service.context.store
    for row in store.page(CalibrationRow, "ann", 100, None):
        store.remove(row)

    def calibrate(workload):
        body = {**RESNET, "workload": workload, "steps": STEPS}
        return service.ask("POST", "/calibrations", body=body)

    def listed():
        items = service.ask("GET", "/calibrations").json["items"]
        return [(item["workload"], item["id"]) for item in items]

    first = calibrate("vgg-19").json["id"]
    older = calibrate("resnet-50").json["id"]
    newer = calibrate("resnet-50").json["id"]
    newest = calibrate("resnet-50").json["id"]
    assert listed() == [("resnet-50", newest), ("resnet-50", newer), ("vgg-19", first)]
    assert service.ask("GET", f"/calibrations/{older}").status_code == 404
    deeper = calibrate("resnet-101").json["id"]
    assert listed() == [("resnet-101", deeper), ("resnet-50", newest), ("vgg-19", first)]
    refused = calibrate("googlenet")
    assert refused.status_code == 422
    assert "calibrations of 3 workloads and GPUs" in refused.json["detail"]
    assert "delete" in refused.json["hint"]
    assert calibrate("vgg-19").status_code == 201, "a newer one for the same is fine"


def test_stored_workloads_are_limited_by_the_setting(service):
    workload = service.ask("GET", "/workloads/resnet-50").json["workload"]
    codes = [
        service.ask("POST", "/workloads", body={**workload, "name": name}).status_code
        for name in ("mine-1", "mine-2", "mine-3", "mine-2")
    ]
    assert codes == [201, 201, 422, 201]


def test_outcomes_of_users_take_turns(service, monkeypatch):
    """Ann's many predictions do not delay the outcome of ben's one."""
    monkeypatch.setattr(outcomes, "_MAX_JOBS_PER_CALL", 2)
    service.view.missing = True
    with service.context.store.session() as session:
        for number in range(6):
            session.add(
                PredictionRow(
                    user="ann" if number < 5 else "ben", job_id=10 + number, workload="w",
                    kind="job", source="fit", body={}, created_at=1.0 + number,
                )
            )  # fmt: skip
    try:
        assert outcomes.record(service.context.store, service.context.cluster, time.time()) == 2
    finally:
        service.view.missing = False
    [row] = service.context.store.page(PredictionRow, "ben", 1, None, job_id=15)
    assert row.ended_as == outcomes.LOST


def test_refusals_are_counted(service):
    [family] = RefusalMetrics("carme_service_refusals", *service.context.limits).collect()
    before = {sample.labels["limit"]: sample.value for sample in family.samples}
    tickets = [service.context.requests.enter("ann") for _ in range(3)]
    assert service.ask("GET", "/workloads").status_code == 429
    for ticket in tickets:
        ticket.leave()
    [family] = RefusalMetrics("carme_service_refusals", *service.context.limits).collect()
    after = {sample.labels["limit"]: sample.value for sample in family.samples}
    assert after["requests"] == before["requests"] + 1
    assert {"long calculations", "tasks", "progress streams", "files", "uploads"} <= after.keys()
    assert len(after) == len(service.context.limits), "each has a label of its own"


def test_log_ins_of_one_user_end_nobody_elses(monkeypatch):
    monkeypatch.setattr(hub_client, "_MAX_SESSIONS_PER_USER", 3)
    sessions = hub_client.BrowserSessions()
    ben = sessions.open("ben", "token-ben")
    ann = [sessions.open("ann", f"token-{number}") for number in range(5)]
    assert sessions.token(ben) == "token-ben"
    assert [sessions.token(name) for name in ann] == [None, None, "token-2", "token-3", "token-4"]


def test_a_stored_workload_is_not_larger_than_a_request(tmp_path):
    small = Service(tmp_path, most_body_bytes=20_000)
    try:
        workload = small.ask("GET", "/workloads/resnet-50").json["workload"]
        parsed = Workload.model_validate({**workload, "name": "mine"})
        with small.app.app_context(), pytest.raises(InputError, match="above 20,000"):
            store_workload(small.context, Caller("ann", False, "token"), parsed)
    finally:
        small.close()
