"""Limits on the work that one prediction, suite or fit may cause, and estimates of that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, isnan, log2
from typing import Any

from carme.errors import InputError
from carme.simulator.costs.step import MAX_MEASURED_BUCKETS
from carme.simulator.pipeline_schedule import MAX_SLOTS
from carme.simulator.plans import (
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
    package_count,
)
from carme.simulator.workload import Workload

MAX_LAYERS = 20_000
"""Layers including repeats: the largest bundled network has some hundreds."""
MAX_MICRO_BATCHES = 10_000
MAX_STAGES = 500
MAX_PIPELINE_SLOTS = 500_000
"""Micro-batches times virtual stages of a pipeline that are simulated one by one: 50 ms."""
MAX_BURST_SLOTS = 4000
"""The same, up to which bursts are simulated: about a second."""
MAX_SAMPLED_STEPS = 10_000
MAX_DRAWS = 20_000_000
"""Random numbers for jitter: a third of a second."""
MAX_SIMULATED_WORKERS = 2048
"""Workers of plans that are simulated worker by worker."""
MAX_PACKAGES = 20_000
MAX_SCALING_GPUS = 4096
"""Up to which a prediction looks for the next limit."""
_LAYER_MILLISECONDS = 0.001
"""A layer of the description, whatever its repeats."""
_BUCKET_MILLISECONDS = 0.04
"""A gradient bucket in the window that is simulated operation by operation, for the bursts."""
_GRADIENT_BYTES = 4
"""Of a parameter, at most."""
MAX_FIT_POINTS = 50
"""Pairs of batch and worker count in one fit: each is simulated some hundred times, all together
in some seconds."""
VARIED = frozenset(
    {
        "gpu", "gpus", "batch", "batch_rule", "epochs", "precision", "optimizer", "power_cap_watts",
        "tensor", "pipeline", "interleave", "context", "expert", "sequence_parallel", "nodes",
        "overlap_layers",
        "micro_batch", "all_reduce", "overlap", "recompute", "recompute_layers", "sharding",
        "shard_group", "prefetch", "synchronize", "gradient_type", "state_type", "framework",
        "shard_optimizer", "loader", "loaders_per_gpu", "data", "scaling", "to_target",
        "bucket_bytes", "jitter", "seed", "servers",
    }
)  # fmt: skip


def check_workload(workload: Workload) -> None:
    """InputError for more layers than can be simulated quickly."""
    count = sum(cost.repeat for cost in workload.costs)
    if count > MAX_LAYERS:
        raise InputError(f"{count:,} layers, repeats counted", f"at most {MAX_LAYERS:,}")


def check_plan(plan: BasePlan, workload: Workload) -> float:
    """About how many milliseconds the plan takes to simulate; InputError if that is too long."""
    return _check(plan, workload, {})


def check_prediction(plan: BasePlan, workload: Workload, *, scaling: bool, detail: bool) -> float:
    """About how many milliseconds a prediction takes, infinite for plans whose workers or stages
    are simulated one by one; InputError if that is too long."""
    milliseconds = check_plan(plan, workload)
    if scaling and isinstance(plan, Synchronous):
        largest = plan.model_copy(update={"gpus": max(plan.gpus, MAX_SCALING_GPUS)})
        counts = log2(max(MAX_SCALING_GPUS / plan.model_parallel, 1)) + 1
        # Each count takes a run; the random numbers halve with the GPUs.
        milliseconds += counts + 2 * (check_plan(largest, workload) - 1)
    else:
        counts = 0
    if not isinstance(plan, Synchronous) or plan.pipeline > 1:
        return inf
    milliseconds += (1 + counts) * _LAYER_MILLISECONDS * len(workload.costs)
    if detail and plan.overlap:
        buckets = ceil(_GRADIENT_BYTES * workload.parameter_count / plan.bucket_bytes)
        milliseconds += _BUCKET_MILLISECONDS * min(buckets, _most_buckets(workload))
    return milliseconds


def _most_buckets(workload: Workload) -> int:
    """Each gradient bucket has at least a layer, or a block of a transformer."""
    if workload.measured:
        return MAX_MEASURED_BUCKETS  # its layers are not known
    if workload.transformer:
        return workload.transformer.blocks + 2  # embedding and output
    return sum(cost.repeat for cost in workload.costs)


def check_ranges(ranges: Mapping[str, Sequence[Any]], plan: BasePlan, workload: Workload) -> float:
    """About how many milliseconds the slowest point takes; InputError if that is too long, or for
    fields that cannot vary."""
    if unknown := sorted(set(ranges) - VARIED):
        raise InputError(
            f"{', '.join(unknown)} cannot vary", f"take any of {', '.join(sorted(VARIED))}"
        )
    return _check(plan, workload, ranges)


def check_points(plan: Synchronous, workload: Workload, points: set[tuple[int, int]]) -> None:
    """InputError for a fit to more pairs of batch and worker count than can be simulated."""
    if len(points) > MAX_FIT_POINTS:
        raise InputError(
            f"steps of {len(points):,} different pairs of batch and GPUs",
            f"at most {MAX_FIT_POINTS}: send those that were measured most",
        )
    plans = (plan.model_copy(update={"batch": batch, "gpus": gpus}) for batch, gpus in points)
    if sum(check_plan(measured_plan, workload) for measured_plan in plans) > MAX_FIT_POINTS:
        raise InputError(
            f"a fit of such a plan to {len(points):,} pairs of batch and GPUs takes too long",
            "send fewer pairs, leave jitter out, or raise micro_batch",
        )


def _check(plan: BasePlan, workload: Workload, ranges: Mapping[str, Sequence[Any]]) -> float:
    """Milliseconds of the slowest combination; `ranges` replace values of the plan."""

    def values(name: str, default: float | None) -> list[float]:
        return [_number(v) for v in ranges.get(name, ())] or [float(default or 0)]

    if plan.sample_steps > MAX_SAMPLED_STEPS:
        raise InputError(f"sample_steps is {plan.sample_steps:,}", f"at most {MAX_SAMPLED_STEPS:,}")
    gpus = max(values("gpus", plan.gpus))
    match plan:
        case ParameterServer() | Averaging() if gpus > MAX_SIMULATED_WORKERS:
            raise InputError(
                f"{gpus:,.0f} GPUs in such a plan", f"at most {MAX_SIMULATED_WORKERS:,}"
            )
        case Averaging() if package_count(plan, workload) > MAX_PACKAGES:
            raise InputError(
                f"{package_count(plan, workload):,} packages",
                f"set packages to at most {MAX_PACKAGES:,}; unset, every sample is one",
            )
        case Synchronous():
            stages = max(values("pipeline", plan.pipeline))
            batch = max(v if v >= 1 else workload.batch for v in values("batch", plan.batch))
            micro_batch = min(v if v >= 1 else 1 for v in values("micro_batch", plan.micro_batch))
            jittered = plan.jitter_samples or max(values("jitter", plan.jitter)) > 0
            draws = gpus * plan.sample_steps if jittered else 0
            if draws > MAX_DRAWS:
                raise InputError(
                    f"{draws:,.0f} random numbers for the jitter (GPUs times sample_steps)",
                    f"at most {MAX_DRAWS:,}: lower sample_steps",
                )
            chunks = max(values("interleave", plan.interleave))
            return 1 + _pipeline(stages, batch / micro_batch, chunks) + draws / 60_000
    return 1.0


def _pipeline(stages: float, micro_batches: float, chunks: float) -> float:
    """Milliseconds to simulate when each micro-batch passes each stage."""
    if stages <= 1:
        return 0
    if micro_batches > MAX_MICRO_BATCHES:
        raise InputError(
            f"{micro_batches:,.0f} micro-batches in a pipeline",
            f"at most {MAX_MICRO_BATCHES:,}: raise micro_batch",
        )
    # The simulator stops at some slot, and continues evenly.
    slots = min(stages * chunks * micro_batches, max(8 * stages**2 * chunks, MAX_SLOTS / 2))
    if stages > MAX_STAGES or slots > MAX_PIPELINE_SLOTS:
        raise InputError(
            f"a pipeline of {stages:,.0f} stages with {micro_batches:,.0f} micro-batches",
            f"at most {MAX_STAGES} stages, and {MAX_PIPELINE_SLOTS:,} virtual stages times"
            " micro-batches: raise micro_batch, or use fewer stages",
        )
    return slots / 10_000


def _number(value: Any) -> float:
    """The value as a plan reads it, also a number in quotes; 0 for what a plan refuses."""
    try:
        number = float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if isnan(number) else number
