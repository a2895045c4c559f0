"""What was predicted for the newest jobs, and what came of it, as series for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from carme.predict.estimates import Estimate
from carme.service.store import PredictionRow, Store

MOST_JOBS = 200
"""Jobs that have series: eight each, and the newest push out the oldest."""


class StoredEstimates(BaseModel):
    """The part of a kept prediction that is measured, too; other releases may have kept more."""

    time: Estimate
    gpu_energy: Estimate


class PredictionMetrics(Collector):
    """`carme_prediction_seconds` and `carme_prediction_joules`, read when Prometheus asks.

    The figures of a job are those of its newest prediction. It is measured once it has run to its
    end: what was cancelled or failed says nothing about the prediction.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing ahead of time: the names are those of `collect`."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families; none while the database is away."""
        labels = ("jobid", "kind")
        seconds = GaugeMetricFamily(
            "carme_prediction_seconds", "Time of a job: predicted, low, high, measured.",
            labels=labels,
        )  # fmt: skip
        joules = GaugeMetricFamily(
            "carme_prediction_joules", "Energy of its GPUs: predicted, low, high, measured.",
            labels=labels,
        )  # fmt: skip
        try:
            rows = newest(self._store)
        except SQLAlchemyError:
            return
        for row in rows:
            try:
                estimates = StoredEstimates.model_validate(row.body)
            except ValidationError:
                continue
            judged = row.time_within is not None
            for family, figure, measured in (
                (seconds, estimates.time, row.measured_seconds),
                (joules, estimates.gpu_energy, row.measured_joules),
            ):
                values = {"predicted": figure.value, "low": figure.low, "high": figure.high}
                if judged and measured is not None:
                    values["measured"] = measured
                for kind, value in values.items():
                    family.add_metric([str(row.job_id), kind], value)
        yield seconds
        yield joules


def newest(store: Store) -> list[PredictionRow]:
    """The newest prediction of each of the newest jobs that have one."""
    table = PredictionRow
    query = (
        select(table)
        .where(table.job_id.is_not(None))
        .order_by(table.created_at.desc(), table.id)
        .limit(4 * MOST_JOBS)
    )
    by_job: dict[int | None, PredictionRow] = {}
    with store.session() as session:
        for row in session.scalars(query):
            by_job.setdefault(row.job_id, row)
    return list(by_job.values())[:MOST_JOBS]
