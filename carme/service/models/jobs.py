"""Jobs: what was measured, against what was predicted."""

from __future__ import annotations

from carme.jobs.models import JobLine, JobReport
from carme.predict.estimates import Estimate, FrozenModel
from carme.service.models.predictions import PredictionAnswer


class Comparison(FrozenModel):
    """What was predicted at submission against what came, so far or in the end."""

    prediction: PredictionAnswer
    measured_seconds: float
    measured_gpu_joules: float | None
    """None: nobody measured it."""
    ratio: float | None
    """Measured over predicted time, once the job is over."""
    within: bool | None
    """Whether it lies in the interval."""
    remaining: Estimate | None
    """Predicted time that is left, while it runs."""


class JobAnswer(FrozenModel):
    """Slurm's record, what was measured so far, and the predictions made for it."""

    job: JobReport
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


class JobPage(FrozenModel):
    items: tuple[JobLine, ...]
    next: str | None = None
    left_out: int = 0
    """Older ones that also match."""
    problem: str = ""
    """Why nothing was measured, in words."""
