"""Suites over several GPUs: each with the nodes, and the calibration, that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from carme import library
from carme.errors import MissingError
from carme.library.suite_runner import Suite
from carme.predict.coefficients import Provenance, Source
from carme.service.models.requests import HardwareQuery
from carme.simulator.analysis.suite import Outcome, Point

_HINT = "GET hardware lists GPUs with known figures, GET cluster those of the partitions"


class Evaluator(Protocol):
    """Simulates points one by one; can be sent to another process."""

    def evaluate(self, point: Point) -> Outcome:
        """What comes of a point."""
        ...


@dataclass(frozen=True)
class GpuComparison:
    """Points whose `gpu` chooses the suite."""

    suites: Mapping[Any, Suite]
    """By GPU as the request names it; None is the request's own hardware."""
    unknown: Mapping[Any, str]
    """Why other GPUs cannot be simulated."""

    def evaluate(self, point: Point) -> Outcome:
        """Simulate one point; a point with an unknown GPU is an outcome with an error."""
        gpu = point["gpu"]
        if gpu not in self.suites:
            return Outcome(point, {}, self.unknown[gpu])
        outcome = self.suites[gpu].evaluate({k: v for k, v in point.items() if k != "gpu"})
        return Outcome(point, outcome.figures, outcome.error)


def hardware_query(gpu: Any) -> HardwareQuery:
    """The hardware that a value of `gpu` stands for: `PARTITION:TYPE` of this cluster, or a GPU
    with known figures. MissingError for anything else."""
    text = str(gpu)
    partition, colon, gpu_type = text.partition(":")
    try:
        if colon:
            return HardwareQuery(partition=partition, gpu_type=gpu_type)
    except ValidationError:
        raise MissingError(f"no GPU {text!r}", _HINT) from None
    name = text.strip().lower().replace(" ", "-")
    # Only bundled names: the library would open a file of any other name.
    if name in library.names("gpus"):
        return HardwareQuery(gpus=name)
    raise MissingError(f"no GPU {text!r}", _HINT)


def joint_provenance(provenances: Mapping[Any, Provenance]) -> Provenance:
    """What the results rest on: the one provenance, or the weakest with a word for each GPU."""
    distinct = set(provenances.values())
    if not distinct:
        return Provenance()
    if len(distinct) == 1:
        return distinct.pop()
    order: tuple[Source, ...] = ("data sheet", "history", "fit")
    return Provenance(
        source=min((provenance.source for provenance in distinct), key=order.index),
        calibrated=all(provenance.calibrated for provenance in distinct),
        words="; ".join(f"{gpu}: {known.words}" for gpu, known in provenances.items()),
    )
