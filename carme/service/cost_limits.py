"""Limits on the work that a request causes: longer simulations are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from carme.errors import InputError
from carme.simulator.plans import (
    MOST_SLOTS,
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
    package_count,
)
from carme.simulator.workload import Workload

MOST_LAYERS = 20_000
"""Repeats counted: the largest bundled network has some hundreds."""
MOST_MICRO_BATCHES = 10_000
MOST_STAGES = 500
MOST_PIECES = 40_000
"""Micro-batches times stages that are worked out one by one: half a second."""
MOST_SAMPLED_STEPS = 10_000
MOST_DRAWS = 20_000_000
"""Random numbers for jitter: a third of a second."""
MOST_WORKERS = 2048
"""Of plans that are simulated worker by worker."""
MOST_PACKAGES = 20_000
MOST_POINTS = 50
"""Pairs of batch and worker count in one fit: each is simulated some hundred times, all in some
seconds."""
VARIED = frozenset(
    {
        "gpu", "gpus", "batch", "batch_rule", "epochs", "precision", "optimizer", "power_cap_watts",
        "tensor", "pipeline", "micro_batch", "all_reduce", "overlap", "recompute",
        "shard_optimizer", "loader", "loaders_per_gpu", "data", "scaling", "to_target",
        "bucket_bytes", "jitter", "seed", "servers",
    }
)  # fmt: skip


def check_workload(workload: Workload) -> None:
    """Refuse one with more layers than can be looked at quickly."""
    count = sum(cost.repeat for cost in workload.costs)
    if count > MOST_LAYERS:
        raise InputError(f"{count:,} layers, repeats counted", f"at most {MOST_LAYERS:,}")


def check_plan(plan: BasePlan, workload: Workload) -> float:
    """Refuse a plan that takes long to simulate; about how many milliseconds any other takes."""
    return _check(plan, workload, {})


def check_ranges(ranges: Mapping[str, Sequence[Any]], plan: BasePlan, workload: Workload) -> float:
    """Refuse ranges of fields that do not vary in a suite, or that take long; about how many
    milliseconds the dearest point takes."""
    if strange := sorted(set(ranges) - VARIED):
        raise InputError(
            f"{', '.join(strange)} cannot vary", f"take any of {', '.join(sorted(VARIED))}"
        )
    return _check(plan, workload, ranges)


def check_points(plan: Synchronous, workload: Workload, points: set[tuple[int, int]]) -> None:
    """Refuse a fit to more pairs of batch and worker count than can be simulated over and over."""
    if len(points) > MOST_POINTS:
        raise InputError(
            f"steps of {len(points):,} different pairs of batch and GPUs",
            f"at most {MOST_POINTS}: send those that were measured most",
        )
    cost = 0.0
    for batch, gpus in points:
        cost += check_plan(plan.model_copy(update={"batch": batch, "gpus": gpus}), workload)
    if cost > MOST_POINTS:
        raise InputError(
            f"a fit of such a plan to {len(points):,} pairs of batch and GPUs takes too long",
            "send fewer pairs, leave jitter out, or raise micro_batch",
        )


def _check(plan: BasePlan, workload: Workload, ranges: Mapping[str, Sequence[Any]]) -> float:
    """The dearest combination of the plan's values and those that take their place."""

    def values(name: str, otherwise: float | None) -> list[float]:
        return [_number(v) for v in ranges.get(name, ())] or [float(otherwise or 0)]

    if plan.sample_steps > MOST_SAMPLED_STEPS:
        raise InputError(
            f"sample_steps is {plan.sample_steps:,}", f"at most {MOST_SAMPLED_STEPS:,}"
        )
    gpus = max(values("gpus", plan.gpus))
    match plan:
        case ParameterServer() | Averaging() if gpus > MOST_WORKERS:
            raise InputError(f"{gpus:,.0f} GPUs in such a plan", f"at most {MOST_WORKERS:,}")
        case Averaging() if package_count(plan, workload) > MOST_PACKAGES:
            raise InputError(
                f"{package_count(plan, workload):,} packages",
                f"set packages to at most {MOST_PACKAGES:,}; unset, every sample is one",
            )
        case Synchronous():
            stages = max(values("pipeline", plan.pipeline))
            batch = max(v if v >= 1 else workload.batch for v in values("batch", plan.batch))
            micro_batch = min(v if v >= 1 else 1 for v in values("micro_batch", plan.micro_batch))
            jittered = plan.jitter_samples or max(values("jitter", plan.jitter)) > 0
            draws = gpus * plan.sample_steps if jittered else 0
            return 1 + _pipeline(stages, batch / micro_batch) + _draws(draws)
    return 1.0


def _pipeline(stages: float, micro_batches: float) -> float:
    """Milliseconds of working out when each micro-batch passes each stage."""
    if stages <= 1:
        return 0
    if micro_batches > MOST_MICRO_BATCHES:
        raise InputError(
            f"{micro_batches:,.0f} micro-batches in a pipeline",
            f"at most {MOST_MICRO_BATCHES:,}: raise micro_batch",
        )
    # The simulator stops at some time, and continues evenly.
    pieces = min(stages * micro_batches, max(8 * stages**2, MOST_SLOTS / 2))
    if stages > MOST_STAGES or pieces > MOST_PIECES:
        raise InputError(
            f"a pipeline of {stages:,.0f} stages with {micro_batches:,.0f} micro-batches",
            f"at most {MOST_PIECES:,} when multiplied, and {MOST_STAGES} stages:"
            " raise micro_batch, or use fewer stages",
        )
    return pieces / 100


def _draws(count: float) -> float:
    """Milliseconds of drawing them."""
    if count > MOST_DRAWS:
        raise InputError(
            f"{count:,.0f} random numbers for the jitter (GPUs times sample_steps)",
            f"at most {MOST_DRAWS:,}: lower sample_steps",
        )
    return count / 60_000


def _number(value: Any) -> float:
    """As a plan would read it, a number in quotes, too; 0 for what it would refuse."""
    try:
        found = float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if isnan(found) else found
