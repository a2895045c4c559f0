"""The series of predictions: the newest jobs, each with its newest prediction and what came."""

import re

from carme.service import outcomes
from carme.service.app import create_app
from carme.service.store import PredictionRow
from support.generators import metrics_reference
from support.service import OWN


def keep(service, job_id, seconds, at, **ended):
    figures = {
        name: {"value": value, "low": value / 2, "high": value * 2, "unit": unit}
        for name, value, unit in (("time", seconds, "s"), ("gpu_energy", 100 * seconds, "J"))
    }
    row = PredictionRow(
        user="ann", job_id=job_id, workload="w", kind="job", source="fit",
        body={**figures, "more": "of another release"}, created_at=at, **ended,
    )  # fmt: skip
    service.context.store.add(row)


def read(service, monkeypatch):
    monkeypatch.setenv("CARME_PROMETHEUS_TOKEN", "prom")
    app = create_app(service.config, token=OWN)
    client = app.test_client()
    client.get("/services/carme/healthz")
    head = {"Authorization": "Bearer prom"}
    text = client.get("/services/carme/metrics", headers=head).text
    app.extensions["carme"].tasks.close()
    app.extensions["carme"].store.engine.dispose()
    return text


def test_each_job_has_its_newest_prediction_and_what_was_measured(service, monkeypatch):
    keep(service, None, 5, 1)
    keep(service, 7, 10, 1)
    keep(service, 7, 20, 2, time_within=True, measured_seconds=22.0, measured_joules=2100.0)
    # One that was cancelled says nothing about the prediction.
    keep(service, 8, 30, 3, ended_as="CANCELLED", measured_seconds=1.0)
    lines = read(service, monkeypatch).splitlines()
    samples = {line for line in lines if line.startswith("carme_prediction_")}
    assert samples == {
        f'carme_prediction_{unit}{{jobid="{job}",kind="{kind}"}} {value}'
        for unit, job, kind, value in (
            ("seconds", 7, "predicted", 20.0), ("seconds", 7, "low", 10.0),
            ("seconds", 7, "high", 40.0), ("seconds", 7, "measured", 22.0),
            ("joules", 7, "predicted", 2000.0), ("joules", 7, "low", 1000.0),
            ("joules", 7, "high", 4000.0), ("joules", 7, "measured", 2100.0),
            ("seconds", 8, "predicted", 30.0), ("seconds", 8, "low", 15.0),
            ("seconds", 8, "high", 60.0),
            ("joules", 8, "predicted", 3000.0), ("joules", 8, "low", 1500.0),
            ("joules", 8, "high", 6000.0),
        )
    }  # fmt: skip


def test_the_newest_push_out_the_oldest(service, monkeypatch):
    monkeypatch.setattr(outcomes, "MAX_JOBS", 3)
    for job in range(1, 8):
        keep(service, job, 10, job)
        keep(service, job, 10, job + 0.5)
    assert [row.job_id for row in outcomes.newest(service.context.store)] == [7, 6, 5]


def test_the_reference_has_every_metric_of_the_service(service, monkeypatch):
    keep(service, 7, 10, 1)
    types = re.findall(r"(?m)^# TYPE (carme_\S+) (\S+)$", read(service, monkeypatch))
    # The client adds when a counter or histogram was made.
    metrics = {(name, kind) for name, kind in types if not name.endswith("_created")}
    assert metrics == {(metric.name, metric.kind) for metric in metrics_reference.SERVICE}
