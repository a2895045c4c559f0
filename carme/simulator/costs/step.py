"""One synchronous step: seconds of each part, before jitter.

The parts are those of the slowest GPU. `Step.seconds(slowest)` puts them together for the jitter
factor of the slowest worker: kernels stretch with it, links do not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.costs.collectives import (
    all_reduce_costs,
    all_reduce_seconds,
    send_seconds,
    spread,
)
from carme.simulator.costs.data_loading import input_seconds
from carme.simulator.costs.memory import Memory, memory_of, memory_of_measured
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.hardware.power import check_cap, under_cap, wait_watts
from carme.simulator.plans.pipeline_schedule import makespan
from carme.simulator.plans.plan import BasePlan, Synchronous, require
from carme.simulator.plans.shard import Shard, batches, shard
from carme.simulator.workloads.measured_steps import measured_seconds
from carme.simulator.workloads.workload import OPTIMIZER_STATES, Workload

Floats = NDArray[np.float64]


class Step(NamedTuple):
    """Parts of a step in seconds, and what the GPU draws in them."""

    kernels: float
    """Busy computing, all micro-batches."""
    forward: float
    """Of it, the forward pass."""
    bubble: float
    """Idle in the pipeline, messages between stages included."""
    tensor: float
    """All-reduces inside layers, exposed."""
    ready: Floats
    """When each gradient bucket is ready, from the step's begin; stretches with jitter."""
    reduce: Floats
    """All-reduce of each bucket, in the order they are ready."""
    update: float
    overhead: float
    """Host time that no kernel hides."""
    input: float
    """Reading this step's samples; hidden unless it is the longest."""
    busy_watts: float
    wait_watts: float
    clock: float
    samples: int
    """In one step, over all copies."""
    gradient_bytes: float
    memory: Memory
    traffic: float
    """Share of the kernels' time in which memory is read or written."""

    def seconds(self, slowest: Floats) -> Floats:
        """Step time for each jitter factor of the slowest worker."""
        own = slowest * (self.kernels + self.bubble) + self.tensor
        own = np.maximum(own, self.reduced(slowest))
        result: Floats = np.maximum(own + self.update + self.overhead, self.input)
        return result

    def reduced(self, slowest: Floats) -> Floats:
        """When the last gradient is reduced: each bucket waits for its own and for those before,
        so the end is the latest of (bucket ready + all reductions from it on)."""
        end = np.zeros_like(slowest)
        if not len(self.ready):
            return end
        following = np.cumsum(self.reduce[::-1])[::-1] + self.tensor
        rows = max(1, 4_000_000 // len(following))  # 32 MB at a time
        for begin in range(0, len(slowest), rows):
            part = slowest[begin : begin + rows, None]
            end[begin : begin + rows] = np.max(part * self.ready + following, axis=1)
        return end

    @property
    def nominal(self) -> float:
        """Step time without jitter."""
        return float(self.seconds(np.ones(1))[0])

    @property
    def exposed(self) -> float:
        """Communication that nothing hides, without jitter."""
        tail = float(self.reduced(np.ones(1))[0]) - self.kernels - self.bubble - self.tensor
        return self.tensor + max(tail, 0.0)


def plan_step(workload: Workload, cluster: Cluster, plan: Synchronous) -> Step:
    """One step of a synchronous plan, after checking that the plan can be."""
    check_size(cluster, plan)
    check_cap(cluster.node.gpu, plan.power_cap_watts)
    if workload.measured:
        return _measured_step(workload, cluster, plan)
    piece = shard(workload, cluster, plan)
    kernels, bubble = _pipeline(piece)
    ready, reduce = _buckets(piece, kernels, bubble)
    return Step(
        kernels=kernels,
        forward=_forward(piece),
        bubble=bubble,
        tensor=_tensor_seconds(piece),
        ready=ready,
        reduce=reduce,
        update=_update_seconds(piece),
        overhead=cluster.node.step_seconds + workload.step_overhead_seconds,
        input=input_seconds(workload, cluster, plan, piece.global_batch),
        busy_watts=piece.pace.busy_watts,
        wait_watts=wait_watts(cluster.node.gpu, plan.power_cap_watts),
        clock=piece.pace.clock,
        samples=piece.global_batch,
        gradient_bytes=piece.parameters * piece.element_bytes if plan.copies > 1 else 0.0,
        memory=memory_of(piece),
        traffic=piece.traffic,
    )


def check_size(cluster: Cluster, plan: BasePlan) -> None:
    """Refuse more GPUs than there are."""
    require(
        plan.gpus <= cluster.gpus,
        f"{plan.gpus} GPUs on {cluster.name}",
        f"it has {cluster.gpus} ({cluster.nodes} nodes x {cluster.node.gpus})",
    )


def stage_seconds(piece: Shard) -> tuple[list[float], list[float], list[float]]:
    """Forward and backward seconds of a micro-batch on each stage, and of messages between them."""
    ahead = [float(piece.forward[rows].sum()) for rows in piece.stages]
    back = [float(piece.backward[rows].sum()) for rows in piece.stages]
    plan, node = piece.plan, piece.cluster.node
    # Tensor-parallel GPUs are neighbours, then stages: a stage boundary may leave the node.
    leaves_node = plan.tensor * plan.pipeline > node.gpus
    sample_bytes = piece.element_bytes * piece.micro_batch
    send = [
        send_seconds(float(piece.arrays.outputs[rows[-1]]) * sample_bytes, node, leaves_node)
        for rows in piece.stages[:-1]
    ]
    return ahead, back, send


def _pipeline(piece: Shard) -> tuple[float, float]:
    """Kernel seconds of the busiest stage, and what it waits in the pipeline."""
    ahead, back, send = stage_seconds(piece)
    busiest = max(f + b for f, b in zip(ahead, back, strict=True)) * piece.micro_batches
    if not send:
        return busiest, 0.0
    total, _ = makespan(ahead, back, send, piece.micro_batches)
    return busiest, total - busiest


def _forward(piece: Shard) -> float:
    """Forward seconds of the stage that computes longest."""
    ahead, back = piece.forward, piece.backward
    busiest = max(piece.stages, key=lambda rows: float(ahead[rows].sum() + back[rows].sum()))
    return float(ahead[busiest].sum()) * piece.micro_batches


def _tensor_seconds(piece: Shard) -> float:
    """All-reduces inside transformer blocks: two forward, two backward, two more to recompute."""
    spec, plan, node = piece.workload.transformer, piece.plan, piece.cluster.node
    if plan.tensor == 1 or spec is None:
        return 0.0
    size = piece.micro_batch * spec.sequence * spec.hidden * piece.element_bytes
    one = all_reduce_seconds(size, spread(plan.tensor, node), node, plan.all_reduce)
    rounds = 6 if plan.recompute == "full" else 4
    # Every micro-batch passes every stage, so the pipeline's bubble holds these, too.
    pieces = piece.micro_batches + plan.pipeline - 1
    return rounds * -(-spec.layers // plan.pipeline) * pieces * one


def _buckets(piece: Shard, kernels: float, bubble: float) -> tuple[Floats, Floats]:
    """When gradient buckets are ready and how long each all-reduce takes."""
    plan, node = piece.plan, piece.cluster.node
    if plan.copies == 1:
        return np.empty(0), np.empty(0)
    group = spread(plan.copies, node, plan.tensor * plan.pipeline)
    lines = all_reduce_costs(group, node, plan.all_reduce)
    if plan.overlap and plan.pipeline == 1:
        rows = piece.stages[0][::-1]
        # The last micro-batch's backward pass, layer by layer from the end.
        spent = np.cumsum(piece.backward[rows])
        total = np.cumsum(piece.arrays.parameters[rows] * piece.element_bytes)
        bucket = np.ceil(total / plan.bucket_bytes)
        last = np.append(np.flatnonzero(np.diff(bucket)), len(rows) - 1)
        size = np.diff(total[last], prepend=0.0)
        ready = kernels - spent[-1] + spent[last]
        ready, size = ready[size > 0], size[size > 0]
    else:
        size = np.array([piece.parameters * piece.element_bytes])
        # A pipeline's first stage is done last, so its reduction is behind the whole schedule.
        ready = np.array([kernels + bubble])
    return ready, np.min([line.start + line.per_byte * size for line in lines], axis=0)


def _update_seconds(piece: Shard) -> float:
    """The optimizer reads and writes weights, gradients and state once."""
    node = piece.cluster.node
    gpu = node.gpu
    state = 2 * 4 * (OPTIMIZER_STATES[piece.optimizer] + 1)
    moved = piece.parameters * (state + 3 * piece.element_bytes)
    if piece.plan.shard_optimizer:
        moved /= piece.plan.copies
    seconds = moved / (gpu.memory_bandwidth * gpu.bandwidth_efficiency) + gpu.kernel_seconds
    return seconds * node.crowded(node.shared_update, piece.plan.gpus)


def _measured_step(workload: Workload, cluster: Cluster, plan: Synchronous) -> Step:
    """A step whose kernels were measured; only data parallelism can be asked of it."""
    require(
        plan.tensor == plan.pipeline == 1,
        f"{workload.name} is known by measured steps, so its layers cannot be cut",
        "use tensor = 1 and pipeline = 1",
    )
    node = cluster.node
    per_copy, global_batch = batches(workload, plan)
    pace = under_cap(node.gpu, 1.0, plan.power_cap_watts)
    compute = measured_seconds(workload, node.gpu.name, per_copy) / pace.clock
    compute *= node.crowded(node.shared_compute, plan.gpus)
    gradient_bytes = workload.parameter_count * 4 if plan.copies > 1 else 0.0
    reduce = all_reduce_seconds(gradient_bytes, spread(plan.copies, node), node, plan.all_reduce)
    several = plan.copies > 1
    return Step(
        kernels=compute,
        forward=compute / 3,
        bubble=0.0,
        tensor=0.0,
        ready=np.array([compute]) if several else np.empty(0),
        reduce=np.array([reduce]) if several else np.empty(0),
        update=0.0,
        overhead=node.step_seconds + workload.step_overhead_seconds,
        input=input_seconds(workload, cluster, plan, global_batch),
        busy_watts=pace.busy_watts,
        wait_watts=wait_watts(node.gpu, plan.power_cap_watts),
        clock=pace.clock,
        samples=global_batch,
        gradient_bytes=gradient_bytes,
        memory=memory_of_measured(workload, cluster, plan.optimizer or workload.optimizer),
        traffic=0.5,  # not known from a time alone
    )
