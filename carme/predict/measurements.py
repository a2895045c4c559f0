"""Measured steps for `carme calibrate` and the API, as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from carme.errors import InputError
from carme.jobs.models import JobLine
from carme.predict.estimates import FrozenModel
from carme.validation import explain

PhaseName = Literal["compute", "communication", "update", "load", "wait"]
PHASE_COLUMNS: tuple[PhaseName, ...] = get_args(PhaseName)
SingleWorkerPhase = Literal["compute", "update"]
"""Phases that a worker can run without the others."""
ALONE_COLUMNS: dict[str, SingleWorkerPhase] = {"alone_compute": "compute", "alone_update": "update"}
Seconds = Annotated[float, Field(ge=0, le=86400)]
MAX_STEPS = 10_000
M = TypeVar("M", bound=BaseModel)


class TimedStep(FrozenModel):
    """One training step as it was timed."""

    batch: Annotated[int, Field(ge=1, le=10**9)]
    """Samples of the step, over all workers."""
    gpus: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Workers: GPUs, or processes where CPUs compute."""
    seconds: Annotated[float, Field(gt=0, le=86400)]
    phases: Mapping[PhaseName, Seconds] = Field(default_factory=dict)
    """Seconds of the phases that were timed."""
    alone: Mapping[SingleWorkerPhase, Seconds] = Field(default_factory=dict)
    """Seconds of these phases on one worker while the others wait, if timed: they show the
    contention of workers on a node."""
    gpu_watts: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Mean draw of one GPU in the step."""

    @model_validator(mode="after")
    def _parts_of_the_whole(self) -> TimedStep:
        if sum(self.phases.values()) > 1.05 * self.seconds:
            raise ValueError("the phases together take longer than the step")
        return self


Steps = Annotated[tuple[TimedStep, ...], Field(min_length=3, max_length=MAX_STEPS)]


def validated(model: type[M], data: Any, source: str) -> M:
    """`data` as a model. Raises InputError with one line for each problem and its location."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = explain(error)[:10]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


class StepsFile(FrozenModel):
    """The JSON form: `{"steps": [{"batch": 64, "gpus": 2, "seconds": 0.12}, …]}`."""

    steps: Steps


def parse_steps(text: str, source: str) -> tuple[TimedStep, ...]:
    """Steps in JSON (an object with `steps`, or a list) or CSV with a header line."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"{source}: not valid JSON: {error}") from None
        data = {"steps": data} if isinstance(data, list) else data
        return validated(StepsFile, data, source).steps
    return validated(StepsFile, {"steps": _rows(text, source)}, source).steps


def _rows(text: str, source: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text))
    columns = {*TimedStep.model_fields, *PHASE_COLUMNS, *ALONE_COLUMNS} - {"phases", "alone"}
    names = [name.strip() for name in reader.fieldnames or ()]
    unknown = sorted(set(names) - columns)
    if unknown or not {"batch", "seconds"} <= set(names):
        problem = f"unknown columns {', '.join(unknown)}" if unknown else "batch or seconds missing"
        raise InputError(f"{source}: {problem}", f"columns are {', '.join(sorted(columns))}")
    rows = []
    for number, raw in enumerate(reader, 2):
        if number > MAX_STEPS + 1:
            raise InputError(f"{source}: more than {MAX_STEPS} steps", "give a part of them")
        cells = {str(k).strip(): v.strip() for k, v in raw.items() if isinstance(v, str)}
        cells = {k: v for k, v in cells.items() if v}
        row: dict[str, Any] = {k: v for k, v in cells.items() if k in TimedStep.model_fields}
        row["phases"] = {k: v for k, v in cells.items() if k in PHASE_COLUMNS}
        row["alone"] = {name: cells[k] for k, name in ALONE_COLUMNS.items() if k in cells}
        rows.append(row)
    return rows


def with_watts(steps: Iterable[TimedStep], job: JobLine) -> tuple[TimedStep, ...]:
    """The steps; those without measured watts get the mean draw of the job's GPUs."""
    measured = job.measured
    if not measured or not measured.gpu_held_seconds or not measured.joules.get("gpu"):
        return tuple(steps)
    watts = measured.joules["gpu"] / measured.gpu_held_seconds
    return tuple(
        step if step.gpu_watts else step.model_copy(update={"gpu_watts": watts}) for step in steps
    )
