"""Coefficients of the simulator from measured steps, by bounded least squares.

Steps of one batch and worker count are taken together by their medians: a disturbed step says
something about the machine's neighbours, not about the workload. The unknowns are the logarithms
of the coefficients (overhead and sharing as they are). Each timed phase, and each total, is one
equation, weighted by the step's length; so is each phase that a worker was timed in alone, with
the same samples of its own. A weak pull to the data sheet keeps what the steps do not determine
where it was; how far a coefficient can move before the fit gets worse says whether it was seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from carme.errors import InputError
from carme.predict.coefficients import BOUNDS, Calibration, Coefficients, Provenance
from carme.predict.estimates import Spread
from carme.predict.measurements import OwnName, PhaseName, TrackedStep
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import Synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.simulate import simulate
from carme.simulator.workloads.workload import Workload

Floats = NDArray[np.float64]
SCALES = ("compute", "memory", "network")
SHARES: dict[str, OwnName] = {"shared_compute": "compute", "shared_update": "update"}
NAMES = (*SCALES, "overhead_seconds", *SHARES)
PULL = 0.002
"""Of a step's length for each factor e away from the data sheet."""
SEEN = 0.005
"""A coefficient is seen if doubling it changes a fitted step by this share."""
MOST_MISS = 0.5
"""A fit that misses a measured step by so much explains nothing."""
MODEL_ERROR = 0.04
"""Left over at the measured point itself, as a share."""


class MeasuredPoint(NamedTuple):
    """Steps of one batch and worker count, by their medians."""

    batch: int
    gpus: int
    number: int
    seconds: float
    phases: dict[PhaseName, float]
    alone: dict[OwnName, float]
    watts: float | None
    spread: float
    """Relative, of the median."""

    @property
    def of_one(self) -> MeasuredPoint:
        """The same samples a worker, for one worker."""
        return self._replace(batch=max(round(self.batch / self.gpus), 1), gpus=1)


def group(steps: Sequence[TrackedStep]) -> list[MeasuredPoint]:
    """The points in the steps."""
    found: dict[tuple[int, int], list[TrackedStep]] = defaultdict(list)
    for step in steps:
        found[step.batch, step.gpus].append(step)
    return [_point(batch, gpus, members) for (batch, gpus), members in sorted(found.items())]


def _point(batch: int, gpus: int, members: list[TrackedStep]) -> MeasuredPoint:
    times = np.array([m.seconds for m in members])
    middle = float(np.median(times))
    deviation = 1.4826 * float(np.median(np.abs(times - middle)))
    names = set.intersection(*(set(m.phases) for m in members))
    phases = {name: float(np.median([m.phases[name] for m in members])) for name in names}
    own = set.intersection(*(set(m.alone) for m in members))
    alone = {name: float(np.median([m.alone[name] for m in members])) for name in own}
    watts = [m.gpu_watts for m in members if m.gpu_watts is not None]
    # What disturbs now one phase and now another lengthens the median step, but no median phase:
    # it is no overhead, and the step is as long as its phases and what each step left untimed.
    untimed = [m.seconds - sum(m.phases[name] for name in names) for m in members]
    seconds = sum(phases.values()) + float(np.median(untimed))
    if seconds < 0.1 * middle:  # each step spent its time in another phase: no median has any
        seconds, phases = middle, {}
    return MeasuredPoint(
        batch, gpus, len(members), seconds, phases, alone,
        float(np.median(watts)) if watts else None,
        1.2533 * deviation / middle / sqrt(len(members)),
    )  # fmt: skip


def fit(
    workload: Workload, cluster: Cluster, plan: Synchronous, steps: Sequence[TrackedStep]
) -> Calibration:
    """Coefficients that make the simulator take as long as the steps did, and their provenance."""
    points = group(steps)
    _check(cluster, points)
    start = _start(workload, cluster, plan, points)
    hidden = _hidden_shares(points)
    low, high = _bounds(hidden)
    scales = len(SCALES)

    def coefficients(x: Floats) -> Coefficients:
        values = [*np.exp(x[:scales]), *x[scales:]]
        clipped = {
            name: float(min(max(value, BOUNDS[name][0]), BOUNDS[name][1]))
            for name, value in zip(NAMES, values, strict=True)
        }
        return Coefficients(**clipped)

    def residuals(x: Floats) -> Floats:
        rows: list[float] = []
        for point in points:
            rows += _misses(_run(workload, cluster, plan, point, coefficients(x)), point)
            if point.gpus > 1 and point.alone:
                said = step_phases(_run(workload, cluster, plan, point.of_one, coefficients(x)))
                rows += [(said[n] - point.alone[n]) / point.seconds for n in sorted(point.alone)]
        pulls = x.copy()
        pulls[scales] /= points[0].seconds
        pulls[scales + 1 :] /= 10  # they have equations of their own, or are held
        return np.array([*rows, *(PULL * pulls)])

    found = least_squares(residuals, np.clip(start, low, high), bounds=(low, high), x_scale="jac")
    best = coefficients(found.x).model_copy(update=dict.fromkeys(hidden, 0.0))
    unseen = _unseen(workload, cluster, plan, points, best)
    best = best.model_copy(update=dict.fromkeys(unseen, 1.0))
    best = _with_power(workload, cluster, plan, points, best)
    return _knowledge(workload, cluster, plan, points, best, (*unseen, *hidden))


def _check(cluster: Cluster, points: list[MeasuredPoint]) -> None:
    most = max(point.gpus for point in points)
    if most > cluster.gpus:
        raise InputError(
            f"steps of {most} workers, but the hardware named has {cluster.gpus} GPUs",
            f"name hardware with at least {most}",
        )


def _hidden_shares(points: list[MeasuredPoint]) -> tuple[str, ...]:
    """How workers slow each other shows in what one takes alone, or in other worker counts."""
    if len({point.gpus for point in points}) > 1:
        return ()
    shown = {name for point in points if point.gpus > 1 for name in point.alone}
    return tuple(share for share, phase in SHARES.items() if phase not in shown)


def _bounds(hidden: tuple[str, ...]) -> tuple[Floats, Floats]:
    """A share that does not show must not take anything from the coefficient it multiplies."""
    pairs = [tuple(log(v) for v in BOUNDS[name]) for name in SCALES]
    pairs += [(0.0, 1e-9) if name in hidden else BOUNDS[name] for name in NAMES[len(SCALES) :]]
    low, high = zip(*pairs, strict=True)
    return np.array(low), np.array(high)


def _run(
    workload: Workload, cluster: Cluster, plan: Synchronous, point: MeasuredPoint, c: Coefficients
) -> SimulationResult:
    """One epoch at the point's batch and workers."""
    seen, place = c.apply(workload, cluster)
    here = plan.model_copy(
        update={"gpus": point.gpus, "batch": point.batch, "batch_rule": "constant", "epochs": 1.0}
    )
    return simulate(seen, place, here)


def step_phases(result: SimulationResult) -> dict[PhaseName, float]:
    """Seconds of one mean step by phase, as steps are tracked."""
    steps = max(result.steps, 1.0)
    return {
        "compute": result.phases["compute"] / steps,
        "communication": result.phases["communication"] / steps,
        "update": result.phases["update"] / steps,
        "wait": result.phases["wait"] / steps,
    }


def _misses(result: SimulationResult, point: MeasuredPoint) -> list[float]:
    """Simulated less measured, over the measured step: the total, and each phase that was timed."""
    said = step_phases(result)
    rows = [(result.step_seconds - point.seconds) / point.seconds]
    for name, seconds in point.phases.items():
        if name in said and name != "wait":
            rows.append((said[name] - seconds) / point.seconds)
    return rows


def _start(
    workload: Workload, cluster: Cluster, plan: Synchronous, points: list[MeasuredPoint]
) -> Floats:
    """Where to begin: ratios of what was measured to what the data sheet says."""
    ratios: dict[str, float] = dict.fromkeys(SCALES, 0.0)
    point = max(points, key=lambda p: p.number)
    said = step_phases(_run(workload, cluster, plan, point, Coefficients()))
    pairs: tuple[tuple[str, PhaseName], ...] = (
        ("compute", "compute"), ("memory", "update"), ("network", "communication"),
    )  # fmt: skip
    for scale, phase in pairs:
        measured = point.phases.get(phase)
        if measured and said[phase] > 0:
            ratios[scale] = log(measured / said[phase])
    if not point.phases:
        ratios["compute"] = log(point.seconds / max(sum(said.values()), 1e-12))
    rest = point.seconds - sum(point.phases.values()) if point.phases else 0.0
    return np.array([*(ratios[name] for name in SCALES), max(rest, 0.0), *(0.0 for _ in SHARES)])


def _unseen(
    workload: Workload,
    cluster: Cluster,
    plan: Synchronous,
    points: list[MeasuredPoint],
    best: Coefficients,
) -> tuple[str, ...]:
    """Coefficients whose doubling would change no fitted step."""
    found = []
    for name in SCALES:
        value = min(2 * getattr(best, name), BOUNDS[name][1])
        doubled = best.model_copy(update={name: value})
        change = max(
            abs(
                _run(workload, cluster, plan, p, doubled).step_seconds
                / _run(workload, cluster, plan, p, best).step_seconds
                - 1
            )
            for p in points
        )
        if change < SEEN:
            found.append(name)
    return tuple(found)


def _with_power(
    workload: Workload,
    cluster: Cluster,
    plan: Synchronous,
    points: list[MeasuredPoint],
    best: Coefficients,
) -> Coefficients:
    """The draw above idle is linear in its coefficient: one division, where watts were measured."""
    measured = [(p, p.watts) for p in points if p.watts is not None]
    idle = cluster.node.gpu.power.idle_watts
    above, said = 0.0, 0.0
    for point, watts in measured:
        above += max(watts - idle, 0.0)
        said += _run(workload, cluster, plan, point, best).average_gpu_watts - idle
    if not measured or said <= 0:
        return best
    low, high = BOUNDS["power"]
    return best.model_copy(update={"power": min(max(above / said, low), high)})


def _knowledge(
    workload: Workload,
    cluster: Cluster,
    plan: Synchronous,
    points: list[MeasuredPoint],
    best: Coefficients,
    unseen: tuple[str, ...],
) -> Calibration:
    misses = [_run(workload, cluster, plan, p, best).step_seconds / p.seconds - 1 for p in points]
    worst, point = max(zip(map(abs, misses), points, strict=True), key=lambda pair: pair[0])
    if worst > MOST_MISS:
        raise InputError(
            f"no coefficients within their bounds make a step of {point.batch} samples on"
            f" {point.gpus} workers take {point.seconds:.3g} s",
            "are workload, batch and hardware those that were measured?",
        )
    count = sum(p.number for p in points)
    noise = sqrt(float(np.mean([p.spread**2 for p in points])))
    sigma = sqrt(MODEL_ERROR**2 + noise**2 + float(np.mean(np.square(misses))))
    watts = any(p.watts is not None for p in points)
    provenance = Provenance(
        source="fit",
        calibrated=True,
        words=f"fitted to {count} measured steps on this hardware",
        steps=count,
        batches=tuple(sorted({p.batch for p in points})),
        workers=tuple(sorted({p.gpus for p in points})),
        points=tuple((p.batch, p.gpus) for p in points),
        unseen=unseen if watts else (*unseen, "power"),
    )
    power = Spread(sigma=0.08) if watts else Calibration().power
    return Calibration(
        coefficients=best, provenance=provenance, time=Spread(sigma=sigma), power=power
    )
