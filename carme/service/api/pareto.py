"""`pareto`: many choices, those that no other beats, and the one that a wish asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from flask import Response

from carme.errors import CarmeError, InputError, MissingError, UnavailableError
from carme.library.suite_runner import Suite
from carme.predict.coefficients import Provenance
from carme.service.context import ServiceContext, current_context
from carme.service.cost_limits import check_ranges
from carme.service.endpoints import Api
from carme.service.gpu_comparison import (
    Evaluator,
    GpuComparison,
    hardware_query,
    joint_provenance,
)
from carme.service.hub_client import Caller
from carme.service.models.pareto import (
    Objective,
    ParetoAnswer,
    ParetoObjective,
    ParetoPoint,
    ParetoRequest,
    TaskAnswer,
)
from carme.service.request_resolution import (
    find_hardware,
    find_knowledge,
    find_workload,
    with_count,
)
from carme.service.tasks import BackgroundTask
from carme.simulator.analysis.suite import Exhaustive, Outcome, Point, Random, front
from carme.simulator.hardware import Cluster

_KEPT_REASONS = 5


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint(
        "POST", "/pareto", body=ParetoRequest, answer=ParetoAnswer, also={202: TaskAnswer}
    )
    def make_pareto(who: Caller, body: ParetoRequest) -> Any:
        """Simulate every combination of ranges; which ones no other beats.

        A small suite is answered at once (200), a large one is a task (202): follow its `events`.
        """
        context = current_context()
        suite, points, provenance, cost = _suite(context, who, body)
        if len(points) * cost <= context.config.service.points_at_once:
            outcomes = [suite.evaluate(point) for point in points]
            return result(outcomes, body.objectives, body.wish, provenance)
        task = context.tasks.start(
            who.name, suite, points, (body.objectives, body.wish, provenance)
        )
        return _shown(task), 202

    @api.endpoint("GET", "/tasks/<string:task_id>", answer=TaskAnswer)
    def get_task(who: Caller, task_id: str) -> TaskAnswer:
        """How far a task is, and its result when it is done."""
        return _shown(current_context().tasks.get(who.name, task_id))

    @api.endpoint("DELETE", "/tasks/<string:task_id>", answer=TaskAnswer)
    def cancel_task(who: Caller, task_id: str) -> TaskAnswer:
        """Cancel a task."""
        return _shown(current_context().tasks.cancel(who.name, task_id))

    @api.endpoint("GET", "/tasks/<string:task_id>/events", media="text/event-stream")
    def follow_task(who: Caller, task_id: str) -> Response:
        """Progress as server-sent events: `progress` with done and total, at last `end`.

        Few can be open at a time; beyond them the answer is 503: ask for the task itself instead.
        """
        context = current_context()
        task = context.tasks.get(who.name, task_id)
        give_back = context.streams.take(who.name)
        if give_back is None:
            raise UnavailableError(
                "too many follow their tasks now", "GET the task itself every few seconds"
            )
        response = Response(
            _events(task),
            mimetype="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        response.call_on_close(give_back)
        return response


def _events(task: BackgroundTask) -> Iterator[str]:
    for state, done in task.follow():
        data = json.dumps({"state": state, "done": done, "total": task.total})
        yield f"event: {'progress' if state == 'running' else 'end'}\ndata: {data}\n\n"


def _suite(
    context: ServiceContext, who: Caller, body: ParetoRequest
) -> tuple[Evaluator, list[Point], Provenance, float]:
    """The suite, its points, what it rests on, and what a point costs (1 for most plans)."""
    workload = find_workload(context, who, body.workload)
    cluster, count = find_hardware(context, body.hardware)
    plan = with_count(body.plan, count)
    cost = check_ranges(body.vary, plan, workload)
    size = 1
    for values in body.vary.values():
        size *= len(values)
    most = context.config.service.most_points
    if size > most and (body.random is None or size > 1_000_000):
        raise InputError(f"{size:,} points", f"at most {most:,}: use fewer values, or `random`")
    ranges = dict(body.vary)
    optimizer = Random(ranges, body.random, plan.seed) if body.random else Exhaustive(ranges)
    points: list[Point] = []
    while batch := optimizer.ask():
        points += batch
    kind = str(plan.model_dump()["kind"])
    fields = plan.model_dump(exclude_unset=True, exclude={"kind"}) | {"gpus": plan.gpus}

    def suite_on(hardware: Cluster) -> tuple[Suite, Provenance]:
        gpu = hardware.node.gpu.name
        calibration, _ = find_knowledge(context, who, workload.name, gpu, body.calibration)
        fitted, place = calibration.coefficients.apply(workload, hardware)
        rates = {"grams_co2_per_kwh": context.rates.grams_co2_per_kwh, "pue": context.rates.pue}
        suite = Suite(fitted, place.model_copy(update=rates), kind, fields)
        return suite, calibration.provenance

    if "gpu" not in body.vary:
        suite, provenance = suite_on(cluster)
        return suite, points, provenance, cost
    suites: dict[Any, Suite] = {}
    provenances: dict[Any, Provenance] = {}
    unknown: dict[Any, str] = {}
    for gpu in dict.fromkeys(body.vary["gpu"]):
        try:
            hardware = cluster if gpu is None else find_hardware(context, hardware_query(gpu))[0]
        except (InputError, MissingError) as error:
            unknown[gpu] = str(error)
        else:
            suites[gpu], provenances[gpu] = suite_on(hardware)
    return GpuComparison(suites, unknown), points, joint_provenance(provenances), cost


def result(
    outcomes: Sequence[Outcome],
    objectives: tuple[Objective, ...],
    wish: ParetoObjective | None,
    provenance: Provenance,
) -> ParetoAnswer:
    """Points, front and the wish's choice."""
    best = {id(o) for o in front(outcomes, objectives)}
    good = [o for o in outcomes if not o.error]
    shown = {id(o): _point(o, id(o) in best) for o in good}
    reasons = sorted({o.error for o in outcomes if o.error})[:_KEPT_REASONS]
    return ParetoAnswer(
        objectives=objectives,
        points=tuple(shown.values()),
        choice=_choice(list(shown.values()), wish) if wish else None,
        impossible=len(outcomes) - len(good),
        reasons=tuple(reasons),
        provenance=provenance,
    )


def _point(outcome: Outcome, on_front: bool) -> ParetoPoint:
    figures = {name: outcome.figures[name] for name in ParetoPoint.model_fields
               if name in outcome.figures}  # fmt: skip
    return ParetoPoint(point=outcome.point, on_front=on_front, **figures)


def _choice(points: list[ParetoPoint], wish: ParetoObjective) -> ParetoPoint | None:
    allowed = [
        p for p in points if all(getattr(p, name) <= most for name, most in wish.at_most.items())
    ]
    return min(allowed, key=lambda p: float(getattr(p, wish.minimize)), default=None)


def _shown(task: BackgroundTask) -> TaskAnswer:
    front_answer = None
    if task.state == "done":
        objectives, wish, provenance = task.question
        try:
            front_answer = result(task.outcomes, objectives, wish, provenance)
        except CarmeError as error:
            task.error = str(error)
    return TaskAnswer(
        id=task.id, state=task.state, done=task.done, total=task.total, error=task.error,
        result=front_answer,
    )  # fmt: skip
