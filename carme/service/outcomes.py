"""Outcomes of predictions: recorded when a job has ended, and counted, to show how often the
intervals held on this cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import ValidationError
from sqlalchemy import Row, func, select
from sqlalchemy.exc import SQLAlchemyError

from carme.errors import CarmeError, MissingError
from carme.jobs.models import JobReport
from carme.jobs.queries import SETTLE_SECONDS
from carme.service.models.coverage import Coverage, CoverageAnswer
from carme.service.prediction_metrics import StoredEstimates
from carme.service.store import PredictionRow, Store
from carme.slurm.states import JobState
from carme.validation import explain
from carme.view.client import SnapshotSubscription

log = logging.getLogger("carme.service")
INTERVAL_SECONDS = 30.0
_AT_ONCE = 50
LOST = "LOST"
"""A job that neither the queue nor the accounting knows any more."""


def record(store: Store, cluster: SnapshotSubscription, now: float) -> int:
    """Record the outcomes of jobs that ended since the last call; returns their number."""
    queued = {job.id for job in cluster.snapshot().jobs if not job.state.ended}
    query = (
        select(PredictionRow)
        .where(PredictionRow.job_id.is_not(None), PredictionRow.ended_as.is_(None))
        .where(PredictionRow.job_id.not_in(queued))
        .order_by(PredictionRow.created_at)
        .limit(_AT_ONCE)
    )
    with store.session() as session:
        rows = list(session.scalars(query))
    done = 0
    for row in rows:
        if not _settle(row, cluster, now):
            continue
        with store.session() as session:
            session.merge(row)
        done += 1
    return done


def _settle(row: PredictionRow, cluster: SnapshotSubscription, now: float) -> bool:
    """Fill in the row; False when it is too early."""
    try:
        job = cluster.client.report(row.job_id or 0)
    except MissingError:
        if now - row.created_at < 10 * SETTLE_SECONDS:  # the accounting may be late
            return False
        row.ended_as = LOST
        return True
    if not job.state.ended or not job.ended_at or now - job.ended_at < SETTLE_SECONDS:
        return False
    judge(row, job)
    return True


def judge(row: PredictionRow, job: JobReport) -> None:
    """Compare; only what ran to its end says anything about the prediction."""
    row.ended_as = job.state.value
    row.measured_seconds = job.elapsed_seconds
    row.measured_joules = job.measured.joules.get("gpu") if job.measured else None
    if job.state != JobState.COMPLETED:
        return
    try:
        prediction = StoredEstimates.model_validate(row.body)
    except ValidationError as error:
        problem = explain(error)[0]
        log.warning("outcomes: prediction %s of job %s: %s", row.id, row.job_id, problem)
        return
    row.time_within = prediction.time.low <= job.elapsed_seconds <= prediction.time.high
    if row.measured_joules:
        row.energy_within = (
            prediction.gpu_energy.low <= row.measured_joules <= prediction.gpu_energy.high
        )


def coverage(store: Store) -> CoverageAnswer:
    """How often intervals held, over everybody's jobs: counts, nobody's names."""
    table = PredictionRow
    # Plain columns and a count: SQLite and PostgreSQL differ in how they add up truths.
    columns = (table.kind, table.source, table.time_within, table.energy_within)
    query = select(*columns, func.count()).where(table.ended_as.is_not(None)).group_by(*columns)
    with store.session() as session:
        return _counted(session.execute(query).all())


def _counted(rows: Iterable[Row[str, str, bool | None, bool | None, int]]) -> CoverageAnswer:
    counts_by_kind: dict[tuple[str, str], dict[str, int]] = {}
    for kind, source, timed, metered, count in rows:
        item = counts_by_kind.setdefault((kind, source), dict.fromkeys(Coverage.COUNTS, 0))
        item["ended"] += count
        item["time_judged"] += count if timed is not None else 0
        item["time_within"] += count if timed else 0
        item["energy_judged"] += count if metered is not None else 0
        item["energy_within"] += count if metered else 0
    return CoverageAnswer(
        items=tuple(
            Coverage(kind=kind, source=source, **counts)
            for (kind, source), counts in sorted(counts_by_kind.items())
        )
    )


class CoverageMetrics(Collector):
    """The counts for Prometheus, read from the database when it asks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ("kind", "source", "figure", "within")
        family = GaugeMetricFamily(
            "carme_service_predictions_judged",
            "Predictions whose job ran to its end, by whether the measured figure lay within the"
            " 90 % interval.",
            labels=labels,
        )
        try:
            items = coverage(self._store).items
        except SQLAlchemyError:
            return  # the other metrics are still good
        for item in items:
            for figure, judged, within in (
                ("time", item.time_judged, item.time_within),
                ("energy", item.energy_judged, item.energy_within),
            ):
                family.add_metric([item.kind, item.source, figure, "true"], within)
                family.add_metric([item.kind, item.source, figure, "false"], judged - within)
        yield family


def keep_recording(store: Store, cluster: SnapshotSubscription, stop: threading.Event) -> None:
    """Record every half minute until `stop` is set; failures are logged and tried again."""
    while not stop.wait(INTERVAL_SECONDS):
        try:
            record(store, cluster, time.time())
        except (CarmeError, SQLAlchemyError) as error:
            log.warning("outcomes: %s", str(error).splitlines()[0])
