"""Fronts: ranges and a wish, points, and the task of a large suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from carme.predict.coefficients import Provenance
from carme.predict.estimates import FrozenModel
from carme.service.models.requests import HardwareQuery, Word, WorkloadName
from carme.simulator.plans import Plan, Synchronous
from carme.simulator.workload import Workload

Objective = Literal["time", "energy", "gpu_energy", "power", "emissions"]
Values = Annotated[
    list[bool | int | float | Annotated[str, Field(max_length=129)] | None],
    Field(min_length=1, max_length=10_000),
]


class ParetoObjective(FrozenModel):
    """What matters: the point of the front with the least of one, where others are bounded."""

    minimize: Objective = "energy"
    at_most: Mapping[Objective, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)


class ParetoRequest(FrozenModel):
    """Ranges of plan fields, and of `gpu`: every combination is simulated.

    A `gpu` is `PARTITION:TYPE` of this cluster, or a GPU with known figures such as `v100` in its
    usual node; each is simulated with your newest calibration of it.
    """

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Plan = Synchronous()
    vary: Annotated[dict[Word, Values], Field(min_length=1, max_length=8)]
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=5)] = (
        "time",
        "energy",
    )
    wish: ParetoObjective | None = None
    random: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """So many random points instead of all."""
    calibration: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$|^none$")] | None = None


class ParetoPoint(FrozenModel):
    """A choice and what comes of it. `energy` and `power` are of the nodes."""

    point: dict[str, Any]
    time: float
    energy: float
    gpu_energy: float
    power: float
    emissions: float
    batch: float
    on_front: bool


class ParetoAnswer(FrozenModel):
    objectives: tuple[Objective, ...]
    points: tuple[ParetoPoint, ...]
    choice: ParetoPoint | None
    """The point that the wish asks for."""
    impossible: int
    """Points that cannot run."""
    reasons: tuple[str, ...]
    """Why, the first few."""
    provenance: Provenance


class TaskAnswer(FrozenModel):
    """A suite under way; `events` streams its progress, DELETE cancels it."""

    id: str
    state: Literal["running", "done", "cancelled", "failed"]
    done: int
    total: int
    error: str = ""
    result: ParetoAnswer | None = None
