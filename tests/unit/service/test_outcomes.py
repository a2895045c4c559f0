"""What came of predictions is recorded once the job has ended, and counted."""

import time

import pytest

from carme.jobs.models import JobReport, MeasuredUsage
from carme.predict.prediction import Prediction
from carme.service.outcomes import LOST, record
from carme.service.store import PredictionRow, Store
from carme.slurm.models import Job
from carme.slurm.states import JobState
from support.database import check_upgrade
from support.service import API, OWN

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "1xV100"}}


@pytest.fixture(autouse=True)
def accounting(service):
    service.view.missing = True


def keep(service, job_id):
    """A prediction made for a session, as the hub does."""
    headers = {"Authorization": f"token {OWN}", "Carme-User": "ann"}
    body = {**RESNET, "keep": True, "job_id": job_id}
    service.view.jobs[str(job_id)] = Job(id=job_id, user="ann")
    answer = service.client.post(f"{API}/predictions", json=body, headers=headers)
    return Prediction.model_validate(answer.json["prediction"])


def end(service, job_id, seconds, joules=None, state=JobState.COMPLETED, ago=100):
    now = int(time.time())
    measured = MeasuredUsage(joules={"gpu": joules}) if joules else None
    service.view.reports[str(job_id)] = JobReport(
        id=job_id, user="ann", state=state, started_at=now - int(seconds) - ago,
        ended_at=now - ago, elapsed_seconds=seconds, measured=measured,
    )  # fmt: skip


def recorded(service):
    return record(service.context.store, service.context.cluster, time.time())


def test_what_ran_to_its_end_is_assessed(service):
    predictions = [keep(service, number) for number in (1, 2, 3, 4)]
    end(service, 1, predictions[0].time.value, predictions[0].gpu_energy.value)
    end(service, 2, 3 * predictions[1].time.high, 3 * predictions[1].gpu_energy.high)
    end(service, 3, 60, state=JobState.CANCELLED)
    assert recorded(service) == 3
    assert recorded(service) == 0
    [item] = service.ask("GET", "/coverage", who="ben").json["items"]
    assert item == {
        "kind": "session", "source": "data sheet", "ended": 3, "time_judged": 2, "time_within": 1,
        "energy_judged": 2, "energy_within": 1,
    }  # fmt: skip


def test_the_time_of_a_session_gives_no_coefficients(service):
    prediction = keep(service, 1)
    end(service, 1, prediction.time.value)
    answer = service.ask("POST", "/calibrations", body={**RESNET, "job_id": 1})
    assert answer.status_code == 422
    assert "was a session" in answer.json["detail"]
    assert "steps" in answer.json["hint"]
    store = service.context.store
    [row] = store.page(PredictionRow, "ann", 1, None)
    row.kind = "job"
    with store.session() as session:
        session.merge(row)
    calibration = service.ask("POST", "/calibrations", body={**RESNET, "job_id": 1})
    assert calibration.json["knowledge"]["provenance"]["source"] == "history"
    assert calibration.json["knowledge"]["provenance"]["steps"] == 1


def test_a_job_that_just_ended_has_a_minute_for_its_last_figures(service):
    prediction = keep(service, 1)
    end(service, 1, prediction.time.value, ago=5)
    assert recorded(service) == 0


def test_a_job_that_nobody_knows_is_asked_for_no_more(service):
    keep(service, 1)
    assert recorded(service) == 0  # the accounting may be late
    later = time.time() + 3600
    assert record(service.context.store, service.context.cluster, later) == 1
    [row] = service.context.store.page(PredictionRow, "ann", 5, None)
    assert row.ended_as == LOST
    [item] = service.ask("GET", "/coverage").json["items"]
    assert (item["ended"], item["time_judged"]) == (1, 0)


def test_a_prediction_that_cannot_be_read_is_not_assessed_and_stops_no_other(service, caplog):
    predictions = [keep(service, number) for number in (1, 2)]
    store = service.context.store
    [row] = store.page(PredictionRow, "ann", 1, None, job_id=1)
    row.body = {"of": "another release"}
    with store.session() as session:
        session.merge(row)
    for number in (1, 2):
        end(service, number, predictions[0].time.value)
    assert recorded(service) == 2
    assert recorded(service) == 0
    [item] = service.ask("GET", "/coverage").json["items"]
    assert (item["ended"], item["time_judged"]) == (2, 1)
    assert f"prediction {row.id} of job 1" in caplog.text


def test_prometheus_gets_the_counts(service, monkeypatch):
    monkeypatch.setenv("CARME_PROMETHEUS_TOKEN", "prom")
    prediction = keep(service, 1)
    end(service, 1, prediction.time.value)
    recorded(service)
    from carme.service.app import create_app

    app = create_app(service.config, token=OWN)
    text = (
        app.test_client()
        .get("/services/carme/metrics", headers={"Authorization": "Bearer prom"})
        .text
    )
    labels = 'figure="time",kind="session",source="data sheet",within="true"'
    assert f"carme_service_predictions_judged{{{labels}}} 1.0" in text


def test_a_prediction_of_the_first_version_is_still_shown(service):
    """What was kept lacks what later releases add."""
    old = keep(service, 1).model_dump(mode="json")
    for part in old["phases"]:
        del part["time"]
    for part in old["bursts"]:
        del part["burst_time"], part["idle_time"]
    for name in ("shared_compute", "shared_update"):
        del old["coefficients"][name]
    store = service.context.store
    [row] = store.page(PredictionRow, "ann", 1, None)
    row.body = old
    with store.session() as session:
        session.merge(row)
    [item] = service.ask("GET", "/predictions").json["items"]
    assert item["prediction"]["time"] == old["time"]


def test_a_database_of_the_first_version_is_brought_up(tmp_path):
    check_upgrade(Store(f"sqlite:///{tmp_path}/old.sqlite"))


def test_a_number_that_slurm_gave_to_another_users_job_is_lost(service):
    keep(service, 1)
    end(service, 1, 100)
    service.view.reports["1"] = service.view.reports["1"].model_copy(update={"user": "ben"})
    context = service.context
    assert record(context.store, context.cluster, time.time()) == 0, "the accounting may be late"
    assert record(context.store, context.cluster, time.time() + 86400) == 1
    [row] = service.context.store.page(PredictionRow, "ann", 1, None, job_id=1)
    assert (row.ended_as, row.measured_seconds) == ("LOST", None)
