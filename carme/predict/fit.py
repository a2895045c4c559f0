"""Coefficients of the simulator from measured steps, by bounded least squares.

Steps of one batch and worker count are combined by their medians, so that disturbed steps do not
count. The unknowns are the logarithms of the coefficients (overhead and sharing as they are). Each
timed phase, and each total, is one equation, weighted by the step's length; so is each phase that a
worker was timed in alone, with as many samples per worker. A weak regularisation towards the data
sheet determines the coefficients that the steps do not. A coefficient is `unseen` if doubling it
hardly changes a fitted step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from carme.errors import InputError
from carme.predict.coefficients import (
    BOUNDS,
    UNCALIBRATED_POWER,
    Calibration,
    Coefficients,
    Provenance,
)
from carme.predict.estimates import Spread
from carme.predict.measurements import PhaseName, SingleWorkerPhase, TimedStep
from carme.simulator.hardware import Cluster
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate
from carme.simulator.runs.result import SimulationResult
from carme.simulator.workload import Floats, Workload

SCALES = ("compute", "memory", "network")
SHARES: dict[str, SingleWorkerPhase] = {"shared_compute": "compute", "shared_update": "update"}
NAMES = (*SCALES, "overhead_seconds", *SHARES)
REGULARISATION = 0.002
"""Residual, as a share of a step, of a coefficient e times as large as by the data sheet."""
VISIBLE_CHANGE = 0.005
"""A coefficient is seen if doubling it changes a fitted step by this share."""
MAX_RELATIVE_ERROR = 0.5
"""A fit with a larger relative error of a measured step is rejected."""
MODEL_ERROR = 0.04
"""Relative error of the model at a measured point."""


class StepMedians(NamedTuple):
    """Medians of the steps of one batch and worker count."""

    batch: int
    gpus: int
    steps: int
    seconds: float
    phases: dict[PhaseName, float]
    alone: dict[SingleWorkerPhase, float]
    watts: float | None
    spread: float
    """Relative standard error of the median."""

    @property
    def single_worker(self) -> StepMedians:
        """The same local batch on one worker."""
        return self._replace(batch=max(round(self.batch / self.gpus), 1), gpus=1)


def group(steps: Sequence[TimedStep]) -> list[StepMedians]:
    """The measured points of the steps."""
    by_point: dict[tuple[int, int], list[TimedStep]] = defaultdict(list)
    for step in steps:
        by_point[step.batch, step.gpus].append(step)
    return [_point(batch, gpus, members) for (batch, gpus), members in sorted(by_point.items())]


def _point(batch: int, gpus: int, members: list[TimedStep]) -> StepMedians:
    times = np.array([m.seconds for m in members])
    median = float(np.median(times))
    deviation = 1.4826 * float(np.median(np.abs(times - median)))
    names = set.intersection(*(set(m.phases) for m in members))
    phases = {name: float(np.median([m.phases[name] for m in members])) for name in names}
    alone_names = set.intersection(*(set(m.alone) for m in members))
    alone = {name: float(np.median([m.alone[name] for m in members])) for name in alone_names}
    watts = [m.gpu_watts for m in members if m.gpu_watts is not None]
    # A disturbance of varying phases lengthens the median step but no median phase. It is not
    # overhead, so the step is the sum of its median phases and the median untimed rest.
    untimed = [m.seconds - sum(m.phases[name] for name in names) for m in members]
    seconds = sum(phases.values()) + float(np.median(untimed))
    if seconds < 0.1 * median:  # the time was in another phase in each step: no median shows it
        seconds, phases = median, {}
    return StepMedians(
        batch=batch,
        gpus=gpus,
        steps=len(members),
        seconds=seconds,
        phases=phases,
        alone=alone,
        watts=float(np.median(watts)) if watts else None,
        spread=1.2533 * deviation / median / sqrt(len(members)),
    )


def fit(
    workload: Workload, cluster: Cluster, plan: Synchronous, steps: Sequence[TimedStep]
) -> Calibration:
    """The calibration whose coefficients make the simulator reproduce the steps. Raises InputError
    if no coefficients within their bounds do."""
    points = group(steps)
    workers = max(point.gpus for point in points)
    if workers > cluster.gpus:
        raise InputError(
            f"steps of {workers} workers, but the hardware named has {cluster.gpus} GPUs",
            f"name hardware with at least {workers}",
        )
    return _Fit(workload, cluster, plan, points).calibration()


def step_phases(result: SimulationResult) -> dict[PhaseName, float]:
    """Seconds of the mean step by phase, as in a TimedStep."""
    phases: tuple[PhaseName, ...] = ("compute", "communication", "update", "wait")
    return {name: result.phases[name] / max(result.steps, 1.0) for name in phases}


def _clip(name: str, value: float) -> float:
    """The value within the bounds of a coefficient."""
    low, high = BOUNDS[name]
    return float(min(max(value, low), high))


class _Fit(NamedTuple):
    """A workload on the hardware and by the plan that were measured, and the measured points."""

    workload: Workload
    cluster: Cluster
    plan: Synchronous
    points: list[StepMedians]

    def calibration(self) -> Calibration:
        undetermined = self.undetermined_shares()
        held = dict.fromkeys(undetermined, 0.0) | self.measured_overhead()
        bounds = [tuple(log(v) for v in BOUNDS[name]) for name in SCALES]
        bounds += [
            (held[name], held[name] + 1e-9) if name in held else BOUNDS[name]
            for name in NAMES[len(SCALES) :]
        ]
        low, high = np.array(bounds).T
        solution = least_squares(
            self.residuals, np.clip(self.start(), low, high), bounds=(low, high), x_scale="jac"
        )
        best = _coefficients(solution.x).model_copy(update=dict.fromkeys(undetermined, 0.0))
        unseen = self.unseen_scales(best)
        best = self.with_power(best.model_copy(update=dict.fromkeys(unseen, 1.0)))
        return self.assessed(best, (*unseen, *undetermined))

    def run(self, point: StepMedians, coefficients: Coefficients) -> SimulationResult:
        """The result of one epoch with the point's batch and workers."""
        workload, cluster = coefficients.apply(self.workload, self.cluster)
        fields = {"batch": point.batch, "batch_rule": "constant", "epochs": 1.0}
        plan = self.plan.model_copy(update={"gpus": point.gpus, **fields})
        return simulate(workload, cluster, plan)

    def undetermined_shares(self) -> tuple[str, ...]:
        """Contention coefficients that the points do not determine: that takes a phase timed with
        one worker alone, or several worker counts."""
        if len({point.gpus for point in self.points}) > 1:
            return ()
        timed_alone = {name for point in self.points if point.gpus > 1 for name in point.alone}
        return tuple(share for share, phase in SHARES.items() if phase not in timed_alone)

    def measured_overhead(self) -> dict[str, float]:
        """The overhead, if the phases of all steps were timed: what is in none of them. Fitted, it
        would take up what the simulator gets wrong in a phase."""
        if not all(point.phases for point in self.points):
            return {}
        known = self.cluster.node.step_seconds + self.workload.step_overhead_seconds
        rest = float(np.median([p.seconds - sum(p.phases.values()) for p in self.points]))
        return {"overhead_seconds": _clip("overhead_seconds", rest - known)}

    def start(self) -> Floats:
        """Start values: ratios of the measured times to those of the data sheet."""
        ratios: dict[str, float] = dict.fromkeys(SCALES, 0.0)
        point = max(self.points, key=lambda p: p.steps)
        simulated = step_phases(self.run(point, Coefficients()))
        pairs: tuple[tuple[str, PhaseName], ...] = (
            ("compute", "compute"), ("memory", "update"), ("network", "communication"),
        )  # fmt: skip
        for scale, phase in pairs:
            measured = point.phases.get(phase)
            if measured and simulated[phase] > 0:
                ratios[scale] = log(measured / simulated[phase])
        if not point.phases:
            ratios["compute"] = log(point.seconds / max(sum(simulated.values()), 1e-12))
        rest = point.seconds - sum(point.phases.values()) if point.phases else 0.0
        return np.array([*ratios.values(), max(rest, 0.0), *(0.0 for _ in SHARES)])

    def residuals(self, x: Floats) -> Floats:
        """Relative errors (simulated minus measured, over the measured step) of each step, of each
        of its timed phases and of the phases timed alone; then the pulls to the data sheet."""
        coefficients = _coefficients(x)
        rows: list[float] = []
        for point in self.points:
            result = self.run(point, coefficients)
            simulated = step_phases(result)
            rows.append((result.step_seconds - point.seconds) / point.seconds)
            for name, seconds in point.phases.items():
                if name in simulated and name != "wait":
                    rows.append((simulated[name] - seconds) / point.seconds)
            if point.gpus > 1 and point.alone:
                simulated = step_phases(self.run(point.single_worker, coefficients))
                rows += [
                    (simulated[n] - point.alone[n]) / point.seconds for n in sorted(point.alone)
                ]
        pulls = x.copy()
        pulls[len(SCALES)] /= self.points[0].seconds
        pulls[len(SCALES) + 1 :] /= 10  # they have equations of their own, or are held
        return np.array([*rows, *(REGULARISATION * pulls)])

    def unseen_scales(self, best: Coefficients) -> tuple[str, ...]:
        """Coefficients whose doubling changes no fitted step noticeably."""
        unseen = []
        seconds = [self.run(point, best).step_seconds for point in self.points]
        for name in SCALES:
            doubled = best.model_copy(update={name: min(2 * getattr(best, name), BOUNDS[name][1])})
            changes = (
                abs(self.run(point, doubled).step_seconds / fitted_seconds - 1)
                for point, fitted_seconds in zip(self.points, seconds, strict=True)
            )
            if max(changes) < VISIBLE_CHANGE:
                unseen.append(name)
        return tuple(unseen)

    def with_power(self, best: Coefficients) -> Coefficients:
        """The coefficients with `power` set where watts were measured; the draw is linear in it."""
        idle = self.cluster.node.gpu.power.idle_watts
        measured = simulated = 0.0
        for point in self.points:
            if point.watts is not None:
                measured += max(point.watts - idle, 0.0)
                simulated += self.run(point, best).average_gpu_watts - idle
        if simulated <= 0:
            return best
        return best.model_copy(update={"power": _clip("power", measured / simulated)})

    def assessed(self, best: Coefficients, unseen: tuple[str, ...]) -> Calibration:
        """The calibration with its uncertainty. Raises InputError if the fit misses a step."""
        points = self.points
        errors = [self.run(p, best).step_seconds / p.seconds - 1 for p in points]
        worst, point = max(zip(map(abs, errors), points, strict=True), key=lambda pair: pair[0])
        if worst > MAX_RELATIVE_ERROR:
            raise InputError(
                f"no coefficients within their bounds make a step of {point.batch} samples on"
                f" {point.gpus} workers take {point.seconds:.3g} s",
                "are workload, batch and hardware those that were measured?",
            )
        count = sum(p.steps for p in points)
        noise = sqrt(float(np.mean([p.spread**2 for p in points])))
        sigma = sqrt(MODEL_ERROR**2 + noise**2 + float(np.mean(np.square(errors))))
        has_watts = any(p.watts is not None for p in points)
        return Calibration(
            coefficients=best,
            provenance=Provenance(
                source="fit",
                calibrated=True,
                words=f"fitted to {count} measured steps on this hardware",
                steps=count,
                batches=tuple(sorted({p.batch for p in points})),
                workers=tuple(sorted({p.gpus for p in points})),
                points=tuple((p.batch, p.gpus) for p in points),
                unseen=unseen if has_watts else (*unseen, "power"),
            ),
            time=Spread(sigma=sigma),
            power=Spread(sigma=0.08) if has_watts else UNCALIBRATED_POWER,
        )


def _coefficients(x: Floats) -> Coefficients:
    """The coefficients of the unknowns `x`, clipped to their bounds."""
    values = [*np.exp(x[: len(SCALES)]), *x[len(SCALES) :]]
    named = zip(NAMES, values, strict=True)
    return Coefficients(**{name: _clip(name, value) for name, value in named})
