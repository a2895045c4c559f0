"""What stops the scaling: for each GPU count the cause that costs most, and where the next one
takes over. The causes are those of Keuper and Pfreundt (communication, skinny products, input),
and memory, imbalance and the pipeline's bubble beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carme.errors import InputError
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import Synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.synchronous import from_step
from carme.simulator.workloads.workload import Workload

COMPUTE = "compute"
"""Nothing costs much beside the work itself."""
NOTICEABLE = 0.1
"""A loss below this share of the run does not count as a limit."""


class ScalingPoint(NamedTuple):
    """The run at one GPU count."""

    gpus: int
    seconds: float
    efficiency: float
    """Work done over what the same GPUs would do if each worked as one does alone."""
    limit: str
    losses: dict[str, float]
    """Seconds of the run by cause."""


class ScalingLimits(NamedTuple):
    """What binds at the plan's own count, and what comes next."""

    gpus: int
    limit: str
    next_limit: str | None
    next_gpus: int | None
    stalls_at: int | None
    """The first count that is not faster by a quarter than half as many GPUs."""
    readings: list[ScalingPoint]


def survey(
    workload: Workload, cluster: Cluster, plan: Synchronous, most: int = 4096
) -> ScalingLimits:
    """Read the plan at its own count and at every doubling from one copy on, up to `most` GPUs.

    The cluster is taken to have as many nodes of its kind as needed.
    """
    block = plan.tensor * plan.pipeline
    counts, count = [], block
    while count <= most:
        counts.append(count)
        count *= 2
    counts = sorted({*counts, plan.gpus})
    readings = list(_readings(workload, cluster, plan, counts))
    if not readings:
        raise InputError(f"no GPU count up to {most} can run this plan", "try a larger batch")
    here = min(readings, key=lambda r: abs(r.gpus - plan.gpus))
    after = next((r for r in readings if r.gpus > here.gpus and r.limit != here.limit), None)
    by_count = {r.gpus: r.seconds for r in readings}
    stalls = next(
        (n for n in by_count if n // 2 in by_count and by_count[n] > by_count[n // 2] / 1.25), None
    )
    return ScalingLimits(
        here.gpus,
        here.limit,
        after.limit if after else None,
        after.gpus if after else None,
        stalls if plan.scaling == "strong" else None,
        readings,
    )


def read(
    workload: Workload, cluster: Cluster, plan: Synchronous, step: Step, result: SimulationResult
) -> ScalingPoint:
    """The plan at its own count, when its step and its run are known already."""
    best = per_sample = step.kernels * plan.copies / step.samples
    block = plan.tensor * plan.pipeline
    if plan.gpus > block:
        try:
            alone = Synchronous(**plan.model_dump(exclude={"gpus"}), gpus=block)
            single = plan_step(workload, cluster, alone)
            best = min(per_sample, single.kernels / single.samples)
        except InputError:
            best = per_sample
    return _reading(result, _losses(result, step.input, best * step.samples / plan.copies))


def _readings(
    workload: Workload, cluster: Cluster, plan: Synchronous, counts: Sequence[int]
) -> list[ScalingPoint]:
    readings: list[ScalingPoint] = []
    best = 0.0
    for gpus in counts:
        nodes = -(-gpus // cluster.node.gpus)
        place = cluster.model_copy(update={"nodes": max(nodes, cluster.nodes)})
        try:
            here = Synchronous(**plan.model_dump(exclude={"gpus"}), gpus=gpus)
            step = plan_step(workload, place, here)
        except InputError:
            break  # fewer samples than copies: the batch cannot be cut further
        result = from_step(workload, place, here, step)
        per_sample = step.kernels * here.copies / step.samples
        best = min(best or per_sample, per_sample)
        losses = _losses(result, step.input, best * step.samples / here.copies)
        readings.append(_reading(result, losses))
    return readings


def _losses(
    result: SimulationResult, input_seconds: float, ideal_kernels: float
) -> dict[str, float]:
    phases, steps = result.phases, result.steps
    compute = phases["compute"] / steps
    rest = (phases["compute"] + phases["communication"] + phases["update"]) / steps
    late = max(min(input_seconds - rest, phases["wait"] / steps), 0.0)
    return {
        "communication": phases["communication"] + phases["broadcast"],
        "skinny products": max(compute - ideal_kernels, 0.0) * steps,
        "input": phases["load"] + late * steps,
        "imbalance and bubbles": phases["wait"] - late * steps,
        "fixed costs": phases["startup"] + phases["update"],
    }


def _reading(result: SimulationResult, losses: dict[str, float]) -> ScalingPoint:
    cause = max(losses, key=lambda name: losses[name])
    limit = cause if losses[cause] > NOTICEABLE * result.seconds else COMPUTE
    if not result.memory.fits:
        limit = "memory"
    efficiency = max(1 - sum(losses.values()) / result.seconds, 0.0)
    return ScalingPoint(result.gpus, result.seconds, efficiency, limit, losses)
