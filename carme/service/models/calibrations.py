"""Measured steps, and what was fitted to them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from carme.predict.coefficients import Calibration
from carme.predict.estimates import FrozenModel
from carme.predict.measurements import Steps
from carme.service.models.requests import HardwareQuery, WorkloadName
from carme.simulator.plans import Synchronous
from carme.simulator.workload import Workload


class CalibrationRequest(FrozenModel):
    """Measured steps of a workload on hardware."""

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Synchronous = Synchronous()
    """How it was run, apart from `gpus` and `batch`, which the steps say."""
    steps: Steps | None = None
    job_id: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """A job of yours that Prometheus knows: the power is taken from it, and without steps the
    time, if it ran its declared workload to the end and was no session."""


class CalibrationAnswer(FrozenModel):
    id: str
    user: str
    workload: str
    gpu: str
    created_at: float
    knowledge: Calibration


class CalibrationPage(FrozenModel):
    items: tuple[CalibrationAnswer, ...]
    next: str | None = None
