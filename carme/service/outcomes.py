"""Outcomes of predictions: recorded when a job has ended, and counted, to show how often the
measurements lay within the intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ValidationError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from carme.errors import CarmeError, MissingError
from carme.jobs.models import JobReport, no_such_job
from carme.jobs.queries import SETTLE_SECONDS
from carme.predict.estimates import Estimate
from carme.service.models import Coverage, CoverageAnswer
from carme.service.store import PredictionRow, Store
from carme.slurm.states import JobState
from carme.validation import explain
from carme.view.client import SnapshotSubscription

log = logging.getLogger("carme.service")
INTERVAL_SECONDS = 30.0
_MAX_JOBS_PER_CALL = 50
LOST = "LOST"
"""The state of a job that neither the queue nor the accounting has any more."""
MAX_JOBS = 200
"""Jobs that have series, eight each; the newest replace the oldest."""


class StoredEstimates(BaseModel):
    """The part of a stored prediction that is also measured; it may be of another release."""

    time: Estimate
    gpu_energy: Estimate


def record(store: Store, cluster: SnapshotSubscription, now: float) -> int:
    """Record the outcomes of jobs that ended since the last call; returns their number."""
    queued = {job.id for job in cluster.snapshot().jobs if not job.state.ended}
    # Users take turns: one with many predictions does not delay the outcomes of others.
    turn = func.row_number().over(
        partition_by=PredictionRow.user, order_by=PredictionRow.created_at
    )
    query = (
        select(PredictionRow)
        .where(PredictionRow.job_id.is_not(None), PredictionRow.ended_as.is_(None))
        .where(PredictionRow.job_id.not_in(queued))
        .order_by(turn, PredictionRow.created_at)
        .limit(_MAX_JOBS_PER_CALL)
    )
    with store.session() as session:
        rows = list(session.scalars(query))
    count = 0
    for row in rows:
        if _settle(row, cluster, now):
            with store.session() as session:
                session.merge(row)
            count += 1
    return count


def _settle(row: PredictionRow, cluster: SnapshotSubscription, now: float) -> bool:
    """Fill in the row; False if it is too early."""
    try:
        job = cluster.client.report(row.job_id or 0)
        if job.user != row.user:  # Slurm has given the number to another job
            raise no_such_job(job.id)
    except MissingError:
        if now - row.created_at < 10 * SETTLE_SECONDS:  # the accounting may be late
            return False
        row.ended_as = LOST
        return True
    if not job.state.ended or not job.ended_at or now - job.ended_at < SETTLE_SECONDS:
        return False
    assess(row, job)
    return True


def assess(row: PredictionRow, job: JobReport) -> None:
    """Compare the job with its prediction, if it ran to its end: others say nothing about it."""
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
    """How often measurements lay within their interval, in counts over the jobs of all users."""
    table = PredictionRow
    # Plain columns and a count: SQLite and PostgreSQL differ in how they sum booleans.
    columns = (table.kind, table.source, table.time_within, table.energy_within)
    query = select(*columns, func.count()).where(table.ended_as.is_not(None)).group_by(*columns)
    with store.session() as session:
        rows = session.execute(query).all()
    counts_by_kind: dict[tuple[str, str], dict[str, int]] = {}
    for kind, source, time_within, energy_within, count in rows:
        counts = counts_by_kind.setdefault((kind, source), dict.fromkeys(Coverage.COUNTS, 0))
        counts["ended"] += count
        for figure, within in (("time", time_within), ("energy", energy_within)):
            counts[f"{figure}_judged"] += count if within is not None else 0
            counts[f"{figure}_within"] += count if within else 0
    return CoverageAnswer(
        items=tuple(
            Coverage(kind=kind, source=source, **counts)
            for (kind, source), counts in sorted(counts_by_kind.items())
        )
    )


def newest(store: Store) -> list[PredictionRow]:
    """The newest prediction of each of the newest jobs that have one."""
    table = PredictionRow
    query = (
        select(table)
        .where(table.job_id.is_not(None))
        .order_by(table.created_at.desc(), table.id)
        .limit(4 * MAX_JOBS)
    )
    by_job: dict[int | None, PredictionRow] = {}
    with store.session() as session:
        for row in session.scalars(query):
            by_job.setdefault(row.job_id, row)
    return list(by_job.values())[:MAX_JOBS]


class _StoreMetrics(Collector):
    """Metrics that are read from the database at each scrape; none while it does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        try:
            return self.families()
        except SQLAlchemyError:
            return ()

    def families(self) -> Iterable[GaugeMetricFamily]:
        raise NotImplementedError


class CoverageMetrics(_StoreMetrics):
    """The counts of `coverage`."""

    def families(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "carme_service_predictions_judged",
            "Predictions whose job ran to its end, by whether the measured figure lay within the"
            " 90 % interval.",
            labels=("kind", "source", "figure", "within"),
        )
        for item in coverage(self._store).items:
            for figure, assessed, within in (
                ("time", item.time_judged, item.time_within),
                ("energy", item.energy_judged, item.energy_within),
            ):
                family.add_metric([item.kind, item.source, figure, "true"], within)
                family.add_metric([item.kind, item.source, figure, "false"], assessed - within)
        return (family,)


class PredictionMetrics(_StoreMetrics):
    """`carme_prediction_seconds` and `carme_prediction_joules` of the newest jobs.

    The figures of a job are those of its newest prediction. The measured value is there once the
    job has run to its end: a cancelled or failed job says nothing about the prediction.
    """

    def families(self) -> Iterable[GaugeMetricFamily]:
        seconds = GaugeMetricFamily(
            "carme_prediction_seconds", "Time of a job: predicted, low, high, measured.",
            labels=("jobid", "kind"),
        )  # fmt: skip
        joules = GaugeMetricFamily(
            "carme_prediction_joules", "Energy of its GPUs: predicted, low, high, measured.",
            labels=("jobid", "kind"),
        )  # fmt: skip
        for row in newest(self._store):
            try:
                estimates = StoredEstimates.model_validate(row.body)
            except ValidationError:
                continue
            for family, figure, measured in (
                (seconds, estimates.time, row.measured_seconds),
                (joules, estimates.gpu_energy, row.measured_joules),
            ):
                values = {"predicted": figure.value, "low": figure.low, "high": figure.high}
                if row.time_within is not None and measured is not None:
                    values["measured"] = measured
                for kind, value in values.items():
                    family.add_metric([str(row.job_id), kind], value)
        return seconds, joules


def keep_recording(store: Store, cluster: SnapshotSubscription, stop: threading.Event) -> None:
    """Record every half minute until `stop` is set; a failure is logged and tried again."""
    while not stop.wait(INTERVAL_SECONDS):
        try:
            record(store, cluster, time.time())
        except (CarmeError, SQLAlchemyError) as error:
            log.warning("outcomes: %s", str(error).splitlines()[0])
