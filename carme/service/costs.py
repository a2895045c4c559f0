"""What a request may cost to answer: what would keep the service busy for long is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from carme.errors import InputError
from carme.simulator.plan import Averaging, BasePlan, ParameterServer, Synchronous
from carme.simulator.workload import Workload

MOST_LAYERS = 20_000
"""Repeats counted: the largest bundled network has some hundreds."""
MOST_MICRO_BATCHES = 10_000
MOST_SAMPLED_STEPS = 10_000
MOST_WORKERS = 2048
"""Of plans that are simulated worker by worker."""
MOST_PACKAGES = 20_000
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


def check_plan(plan: BasePlan, usual_batch: int) -> None:
    """Refuse a plan that takes long to simulate."""
    if plan.sample_steps > MOST_SAMPLED_STEPS:
        raise InputError(
            f"sample_steps is {plan.sample_steps:,}", f"at most {MOST_SAMPLED_STEPS:,}"
        )
    match plan:
        case Synchronous(pipeline=stages) if stages > 1:
            _check_pipeline(plan.batch or usual_batch, plan.micro_batch or 1)
        case ParameterServer() | Averaging() if plan.gpus > MOST_WORKERS:
            raise InputError(f"{plan.gpus:,} GPUs in such a plan", f"at most {MOST_WORKERS:,}")
        case Averaging(packages=packages) if packages > MOST_PACKAGES:
            raise InputError(f"{packages:,} packages", f"at most {MOST_PACKAGES:,}")


def _check_pipeline(batch: float, micro_batch: float) -> None:
    if batch / micro_batch > MOST_MICRO_BATCHES:
        raise InputError(
            f"{batch / micro_batch:,.0f} micro-batches in a pipeline",
            f"at most {MOST_MICRO_BATCHES:,}: raise micro_batch",
        )


def check_ranges(ranges: Mapping[str, Sequence[Any]], plan: BasePlan, usual_batch: int) -> None:
    """Refuse ranges of fields that do not vary in a suite, or that take long."""
    if strange := sorted(set(ranges) - VARIED):
        raise InputError(
            f"{', '.join(strange)} cannot vary", f"take any of {', '.join(sorted(VARIED))}"
        )

    def numbers(name: str, otherwise: float) -> list[float]:
        found = [float(v) for v in ranges.get(name, ()) if isinstance(v, int | float) and v > 0]
        return found or [float(otherwise)]

    if max(numbers("pipeline", getattr(plan, "pipeline", 1))) > 1:
        micro = min(numbers("micro_batch", getattr(plan, "micro_batch", None) or 1))
        _check_pipeline(max(numbers("batch", plan.batch or usual_batch)), micro)
    if isinstance(plan, ParameterServer | Averaging):
        most = max(numbers("gpus", plan.gpus))
        if most > MOST_WORKERS:
            raise InputError(f"{most:,.0f} GPUs in such a plan", f"at most {MOST_WORKERS:,}")
