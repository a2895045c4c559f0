"""Scaling limits: the cause that costs most time at each GPU count, and where the next one takes
over. The causes are those of Keuper and Pfreundt (communication, skinny products, input), and
memory, imbalance and the pipeline's bubble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carme.errors import InputError
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.hardware import Cluster
from carme.simulator.plans import Synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.synchronous import run_synchronous
from carme.simulator.workload import Workload

COMPUTE = "compute"
"""The limit where no cause costs a noticeable time."""
SIZES = {"gpus", "nodes", "expert", "shard_group"}
"""Fields of a plan that depend on the number of its GPUs."""
NOTICEABLE = 0.1
"""A loss below this share of the run does not count as a limit."""


class ScalingPoint(NamedTuple):
    """The run at one GPU count."""

    gpus: int
    seconds: float
    efficiency: float
    """Throughput over that of the same GPUs if each worked as fast as one alone."""
    limit: str
    losses: dict[str, float]
    """Seconds of the run by cause."""


class ScalingLimits(NamedTuple):
    """The limit at the plan's GPU count, and the next one."""

    gpus: int
    limit: str
    next_limit: str | None
    next_gpus: int | None
    stalls_at: int | None
    """The first GPU count that is not at least 1.25 times as fast as half as many GPUs."""
    points: list[ScalingPoint]


def scaling_limits(
    workload: Workload, cluster: Cluster, plan: Synchronous, max_gpus: int = 4096
) -> ScalingLimits:
    """The limits at the plan's GPU count and at every doubling from one copy up to `max_gpus` GPUs.

    The cluster may have any number of nodes of its type.
    """
    model_parallel = plan.model_parallel
    counts, count = [], model_parallel
    while count <= max_gpus:
        counts.append(count)
        count *= 2
    counts = sorted({*counts, plan.gpus})
    points = list(_points(workload, cluster, plan, counts))
    if not points:
        raise InputError(f"no GPU count up to {max_gpus} can run this plan", "try a larger batch")
    current = min(points, key=lambda p: abs(p.gpus - plan.gpus))
    following = next(
        (p for p in points if p.gpus > current.gpus and p.limit != current.limit), None
    )
    by_count = {p.gpus: p.seconds for p in points}
    stalls = next(
        (n for n in by_count if n // 2 in by_count and by_count[n] > by_count[n // 2] / 1.25), None
    )
    return ScalingLimits(
        gpus=current.gpus,
        limit=current.limit,
        next_limit=following.limit if following else None,
        next_gpus=following.gpus if following else None,
        stalls_at=stalls if plan.scaling == "strong" else None,
        points=points,
    )


def scaling_point(
    workload: Workload, cluster: Cluster, plan: Synchronous, step: Step, result: SimulationResult
) -> ScalingPoint:
    """The limit at the plan's GPU count, from its step and its result."""
    best = per_sample = step.kernel_seconds * plan.data_parallel / step.samples
    model_parallel = plan.model_parallel
    if plan.gpus > model_parallel:
        one_copy = Synchronous(**plan.model_dump(exclude=SIZES), gpus=model_parallel)
        try:
            single = plan_step(workload, cluster, one_copy)
            best = min(per_sample, single.kernel_seconds / single.samples)
        except InputError:
            best = per_sample
    return _point(result, step.data_loading_seconds, best * step.samples / plan.data_parallel)


def _points(
    workload: Workload, cluster: Cluster, plan: Synchronous, counts: Sequence[int]
) -> list[ScalingPoint]:
    points: list[ScalingPoint] = []
    best = 0.0
    for gpus in counts:
        nodes = -(-gpus // cluster.node.gpus)
        larger = cluster.model_copy(update={"nodes": max(nodes, cluster.nodes)})
        try:
            scaled = Synchronous(**plan.model_dump(exclude=SIZES), gpus=gpus)
            step = plan_step(workload, larger, scaled)
        except InputError:
            break  # fewer samples than copies: the batch cannot be divided further
        result = run_synchronous(workload, larger, scaled, step)
        per_sample = step.kernel_seconds * scaled.data_parallel / step.samples
        best = min(best or per_sample, per_sample)
        ideal_kernel_seconds = best * step.samples / scaled.data_parallel
        points.append(_point(result, step.data_loading_seconds, ideal_kernel_seconds))
    return points


def _point(
    result: SimulationResult, data_loading_seconds: float, ideal_kernel_seconds: float
) -> ScalingPoint:
    """The limit of a run, from the seconds that a step's data loading takes and the seconds that
    its kernels would take at best."""
    phases, steps = result.phases, result.steps
    compute = phases["compute"] / steps
    rest = (phases["compute"] + phases["communication"] + phases["update"]) / steps
    late = max(min(data_loading_seconds - rest, phases["wait"] / steps), 0.0)
    losses = {
        "communication": phases["communication"] + phases["broadcast"],
        "skinny products": max(compute - ideal_kernel_seconds, 0.0) * steps,
        "input": phases["load"] + late * steps,
        "imbalance and bubbles": phases["wait"] - late * steps,
        "fixed costs": phases["startup"] + phases["update"],
    }
    cause = max(losses, key=lambda name: losses[name])
    limit = cause if losses[cause] > NOTICEABLE * result.seconds else COMPUTE
    if not result.memory.fits:
        limit = "memory"
    efficiency = max(1 - sum(losses.values()) / result.seconds, 0.0)
    return ScalingPoint(
        gpus=result.gpus,
        seconds=result.seconds,
        efficiency=efficiency,
        limit=limit,
        losses=losses,
    )
