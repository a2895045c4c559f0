"""Prediction against measurement, row by row."""

from __future__ import annotations

from typing import NamedTuple

from carme.errors import InputError
from carme.measurements.eligibility import why_not_eligible
from carme.measurements.rows import PublishedRow
from carme.measurements.runs import NotModelledError, PublishedRun, published_run
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.plans import Synchronous

NEARLY_FULL = 0.85
"""Share of the GPU's memory above which twice the micro-batch should not fit."""


class Judgement(NamedTuple):
    """What became of one row."""

    row: PublishedRow
    not_eligible: str = ""
    """Why the row does not count."""
    not_modelled: str = ""
    """Why an eligible row has no prediction."""
    refused: str = ""
    """Why the simulator says that the run does not fit, although it ran."""
    measured_seconds: float = 0.0
    predicted_seconds: float = 0.0
    measured_bytes: float = 0.0
    predicted_bytes: float = 0.0
    doubled_is_refused: bool | None = None
    """Whether twice the micro-batch is refused, for rows that nearly fill the memory."""

    @property
    def is_eligible(self) -> bool:
        return not self.not_eligible

    @property
    def is_modelled(self) -> bool:
        return self.is_eligible and not self.not_modelled

    @property
    def ratio(self) -> float:
        """Predicted over measured; 0 without a prediction."""
        return self.predicted_seconds / self.measured_seconds if self.measured_seconds else 0.0

    @property
    def error(self) -> float:
        """1 for a row without a prediction and for one that is refused."""
        if not self.is_modelled or self.refused:
            return 1.0
        return abs(self.ratio - 1)


def judge(row: PublishedRow) -> Judgement:
    """Compare one row."""
    if reason := why_not_eligible(row):
        return Judgement(row, not_eligible=reason)
    try:
        run = published_run(row)
        step, plan = _step(run)
    except NotModelledError as error:
        return Judgement(row, not_modelled=error.message)
    except InputError as error:
        return Judgement(row, not_modelled=f"refused: {error.message}")
    predicted = step.nominal_seconds - (0.0 if run.updates else step.update_seconds)
    measured_bytes = (row.number("memory_gb_per_gpu") or 0.0) * 2**30
    doubled = None
    if measured_bytes > NEARLY_FULL * step.memory.capacity:
        doubled = _doubled_is_refused(run, plan)
    return Judgement(
        row,
        refused="" if step.memory.fits else step.memory.why_not(),
        measured_seconds=run.measured_seconds,
        predicted_seconds=predicted,
        measured_bytes=measured_bytes,
        # An allocator gives back what it only holds before it fails.
        predicted_bytes=min(step.memory.total, step.memory.capacity)
        if step.memory.fits
        else step.memory.total,
        doubled_is_refused=doubled,
    )


def _step(run: PublishedRun) -> tuple[Step, Synchronous]:
    """The first plan that fits, or the last."""
    for plan in run.plans:
        step = plan_step(run.workload, run.cluster, plan)
        if step.memory.fits:
            break
    return step, plan


def _doubled_is_refused(run: PublishedRun, plan: Synchronous) -> bool | None:
    micro_batch = plan.micro_batch or (plan.batch or 1) // max(plan.data_parallel, 1)
    doubled = plan.model_copy(
        update={"micro_batch": 2 * micro_batch, "batch": 2 * (plan.batch or 1)}
    )
    try:
        return not plan_step(run.workload, run.cluster, doubled).memory.fits
    except InputError:
        return None
