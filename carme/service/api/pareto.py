"""`pareto`: simulates many points and marks the Pareto front, and the point that `wish` chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from flask import Response
from pydantic import ValidationError

from carme import library
from carme.errors import InputError, MissingError
from carme.library.suite_runner import Suite
from carme.predict.coefficients import Provenance, Source
from carme.predict.simulation_limits import check_ranges
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import (
    HardwareQuery,
    ParetoAnswer,
    ParetoObjective,
    ParetoPoint,
    ParetoRequest,
    TaskAnswer,
)
from carme.service.request_resolution import (
    find_calibration,
    find_hardware,
    find_workload,
    gpu_count,
    with_count,
)
from carme.service.tasks import BackgroundTask, Evaluator
from carme.simulator.analysis.search import (
    ExhaustiveSearch,
    Outcome,
    Point,
    RandomSearch,
    pareto_front,
)
from carme.simulator.hardware import Cluster
from carme.simulator.runs.figures import FigureName

_MAX_REASONS = 5
_HINT = "GET hardware lists GPUs with known figures, GET cluster those of the partitions"
api = Api()


@api.endpoint("POST", "/pareto", answer=ParetoAnswer, also={202: TaskAnswer})
def make_pareto(caller: Caller, body: ParetoRequest) -> Any:
    """Simulate every combination of ranges, and mark those that no other beats.

    A small suite is answered at once (200), a large one is a task (202): follow its `events`.
    """
    context = current_context()
    with context.calculations.turn(caller.name):
        suite, points, provenance, cost = _suite(context, caller, body)
        if len(points) * cost <= context.config.service.points_at_once:
            outcomes = [suite.evaluate(point) for point in points]
            return _result(outcomes, body.objectives, body.wish, provenance)
    summarize = partial(_json_result, body.objectives, body.wish, provenance)
    task = context.tasks.start(caller.name, suite, points, cost, summarize)
    return _answer_of(task), 202


@api.endpoint("GET", "/tasks/<string:task_id>", answer=TaskAnswer)
def get_task(caller: Caller, task_id: str) -> Any:
    """The progress of a task, and its result when it is done."""
    task = current_context().tasks.get(caller.name, task_id)
    answer = _answer_of(task)
    if task.state != "done":
        return answer
    # The result is JSON already: to make it again would take seconds for a large suite.
    fields = answer.model_dump_json(exclude={"result"}).encode()
    body = b'%s,"result":%s}' % (fields[:-1], task.result)
    return Response(body, mimetype="application/json")


@api.endpoint("DELETE", "/tasks/<string:task_id>")
def cancel_task(caller: Caller, task_id: str) -> TaskAnswer:
    """Cancel a task; its results so far are dropped."""
    task = current_context().tasks.get(caller.name, task_id)
    task.end("cancelled")
    return _answer_of(task)


@api.endpoint("GET", "/tasks/<string:task_id>/events", media="text/event-stream")
def follow_task(caller: Caller, task_id: str) -> Response:
    """Progress as server-sent events: `progress` with done and total, at last `end`.

    A user has two open streams, and all users together six; above it GET the task instead.
    """
    context = current_context()
    task = context.tasks.get(caller.name, task_id)
    place = context.streams.enter(caller.name)

    def events() -> Iterator[str]:
        for state, done in task.follow():
            data = json.dumps({"state": state, "done": done, "total": task.total})
            yield f"event: {'progress' if state == 'running' else 'end'}\ndata: {data}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = Response(events(), mimetype="text/event-stream", headers=headers)
    response.call_on_close(place.leave)
    return response


def _suite(
    context: ServiceContext, caller: Caller, body: ParetoRequest
) -> tuple[Evaluator, list[Point], Provenance, float]:
    """The suite, its points, its provenance, and about how many milliseconds a point takes."""
    workload = find_workload(context, caller, body.workload)
    plan = with_count(body.plan, gpu_count(body.hardware))
    cost = check_ranges(body.vary, plan, workload)
    size = prod(map(len, body.vary.values()))
    max_points = context.config.service.most_points
    if size > max_points and (body.random is None or size > 1_000_000):
        raise InputError(
            f"{size:,} points", f"at most {max_points:,}: use fewer values, or `random`"
        )
    ranges = dict(body.vary)
    strategy = (
        RandomSearch(ranges, body.random, plan.seed) if body.random else ExhaustiveSearch(ranges)
    )
    points: list[Point] = []
    while batch := strategy.ask():
        points += batch
    kind = str(plan.model_dump()["kind"])
    fields = plan.model_dump(exclude_unset=True, exclude={"kind"}) | {"gpus": plan.gpus}

    def suite_on(hardware: Cluster, may_add_nodes: bool) -> tuple[Suite, Provenance]:
        gpu = hardware.node.gpu.name
        calibration, _ = find_calibration(context, caller, workload.name, gpu, body.calibration)
        fitted, cluster = calibration.coefficients.apply(workload, hardware)
        suite = Suite(
            workload=fitted, cluster=context.rates.apply(cluster), kind=kind, fields=fields,
            may_add_nodes=may_add_nodes,
        )  # fmt: skip
        return suite, calibration.provenance

    def hardware_for(query: HardwareQuery) -> tuple[Cluster, bool]:
        # A partition has only its nodes; of a GPU in the library, any number is compared.
        return find_hardware(context, query)[0], query.partition is None

    if "gpu" not in body.vary:
        suite, provenance = suite_on(*hardware_for(body.hardware))
        return suite, points, provenance, cost
    suites: dict[Any, Suite] = {}
    provenances: dict[Any, Provenance] = {}
    unknown: dict[Any, str] = {}
    for gpu in dict.fromkeys(body.vary["gpu"]):
        try:
            hardware = hardware_for(body.hardware if gpu is None else hardware_query(gpu))
        except (InputError, MissingError) as error:
            unknown[gpu] = str(error)
        else:
            suites[gpu], provenances[gpu] = suite_on(*hardware)
    return GpuComparison(suites, unknown), points, joint_provenance(provenances), cost


def _result(
    outcomes: Sequence[Outcome],
    objectives: tuple[FigureName, ...],
    wish: ParetoObjective | None,
    provenance: Provenance,
) -> ParetoAnswer:
    on_front = {id(outcome) for outcome in pareto_front(outcomes, objectives)}
    points = []
    for outcome in (o for o in outcomes if not o.error):
        names = ParetoPoint.model_fields.keys() & outcome.figures.keys()
        figures = {name: outcome.figures[name] for name in names}
        points.append(ParetoPoint(point=outcome.point, on_front=id(outcome) in on_front, **figures))
    choice = None
    if wish:
        limits = wish.at_most.items()
        allowed = [
            p for p in points if all(getattr(p, name) <= maximum for name, maximum in limits)
        ]
        choice = min(allowed, key=lambda p: float(getattr(p, wish.minimize)), default=None)
    return ParetoAnswer(
        objectives=objectives,
        points=tuple(points),
        choice=choice,
        impossible=len(outcomes) - len(points),
        reasons=tuple(sorted({o.error for o in outcomes if o.error})[:_MAX_REASONS]),
        provenance=provenance,
    )


def _json_result(
    objectives: tuple[FigureName, ...],
    wish: ParetoObjective | None,
    provenance: Provenance,
    outcomes: list[Outcome],
) -> bytes:
    return _result(outcomes, objectives, wish, provenance).model_dump_json().encode()


def _answer_of(task: BackgroundTask) -> TaskAnswer:
    """The progress of a task, without its result."""
    return TaskAnswer(
        id=task.id, state=task.state, done=task.done, total=task.total, error=task.error
    )


@dataclass(frozen=True)
class GpuComparison:
    """Suites of several GPUs, each with its nodes and calibration; a point's `gpu` chooses."""

    suites: Mapping[Any, Suite]
    """By GPU as the request names it; None is the request's own hardware."""
    unknown: Mapping[Any, str]
    """Why each of the other GPUs cannot be simulated."""

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
    name = text.strip().lower().replace(" ", "-")
    try:
        if colon:
            return HardwareQuery(partition=partition, gpu_type=gpu_type)
        # Only bundled names: the library would open a file of any other name.
        if name in library.names("gpus"):
            return HardwareQuery(gpus=name)
    except ValidationError:
        pass
    raise MissingError(f"no GPU {text!r}", _HINT)


def joint_provenance(provenances: Mapping[Any, Provenance]) -> Provenance:
    """The one provenance of all results, or the weakest source with the words of each GPU."""
    distinct = set(provenances.values())
    if not distinct:
        return Provenance()
    if len(distinct) == 1:
        return distinct.pop()
    order: tuple[Source, ...] = ("data sheet", "history", "fit")
    return Provenance(
        source=min((provenance.source for provenance in distinct), key=order.index),
        calibrated=all(provenance.calibrated for provenance in distinct),
        words="; ".join(f"{gpu}: {each.words}" for gpu, each in provenances.items()),
    )
