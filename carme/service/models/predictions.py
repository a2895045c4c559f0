"""Predictions as they are asked for, answered and kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from carme.predict.estimates import FrozenModel
from carme.predict.prediction import Prediction
from carme.service.models.requests import HardwareQuery, WorkloadName
from carme.simulator.plans import Plan, Synchronous
from carme.simulator.workload import Workload


class PredictionRequest(FrozenModel):
    """A workload by name (bundled or your own) or in full, on hardware, by a plan."""

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Plan = Synchronous()
    """`gpus` may be left out: the hardware says how many."""
    samples: Annotated[int, Field(ge=1, le=10**13)] | None = None
    """Of the data set; its own number if unset."""
    calibration: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$|^none$")] | None = None
    """The id of one to use, or `none` for the data sheet; unset: the newest that fits."""
    scaling: bool = False
    """Also look for the next limit at larger GPU counts."""
    keep: bool = False
    """Store it, for comparing later."""
    job_id: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The job it is made for; only with `keep`."""


class PredictionAnswer(FrozenModel):
    prediction: Prediction
    id: str | None = None
    """Of the stored prediction."""
    job_id: int | None = None
    created_at: float
    user: str


class PredictionPage(FrozenModel):
    items: tuple[PredictionAnswer, ...]
    next: str | None = None
    """The value of `cursor` for the next page."""
