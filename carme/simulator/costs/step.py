"""One synchronous step: seconds of each part, before jitter; and reading the data set.

The parts are those of the busiest GPU. `Step.seconds(slowest)` combines them, given the jitter
factor of the slowest worker: it multiplies kernel times, not communication.
"""

from __future__ import annotations

from math import ceil, inf, log2
from typing import NamedTuple

import numpy as np

from carme.simulator.costs.collectives import (
    all_reduce_costs,
    collective_group,
    placed_node,
    send_seconds,
)
from carme.simulator.costs.communication import (
    gradient_buckets,
    layer_traffic,
    weight_gather_seconds,
)
from carme.simulator.costs.memory import Memory, measured_memory, shard_memory
from carme.simulator.costs.shard import Shard, batch_sizes, shard_workload
from carme.simulator.hardware import Cluster, NodeModel, check_cap, under_cap, wait_watts
from carme.simulator.pipeline_schedule import makespan
from carme.simulator.plans import BasePlan, Synchronous, require
from carme.simulator.precision import BYTES_PER_ELEMENT
from carme.simulator.workload import OPTIMIZER_STATES, Floats, Workload

MAX_MEASURED_BUCKETS = 10_000


class Step(NamedTuple):
    """Seconds of the parts of a step, and the draw of a GPU in them."""

    kernel_seconds: float
    """Forward and backward kernels of all micro-batches."""
    forward_seconds: float
    """Of these, the forward pass."""
    bubble_seconds: float
    """Idle in the pipeline, messages between stages included."""
    tensor_parallel_seconds: float
    """Communication inside layers that nothing hides: of tensor, context and expert parallelism,
    and gathers of sharded weights."""
    bucket_ready_seconds: Floats
    """When each gradient bucket is ready, from the start of the step; grows with jitter."""
    bucket_all_reduce_seconds: Floats
    """All-reduce of each bucket, in the order they get ready."""
    update_seconds: float
    """The optimizer's update."""
    overhead_seconds: float
    """Host time that no kernel hides."""
    data_loading_seconds: float
    """Reading this step's samples; hidden unless it takes longer than the rest of the step."""
    busy_watts: float
    wait_watts: float
    clock: float
    samples: int
    """In one step, over all copies."""
    gradient_bytes: float
    memory: Memory
    memory_busy_share: float
    """Share of the kernels' time in which memory is read or written."""

    def seconds(self, slowest: Floats) -> Floats:
        """Step time for each jitter factor of the slowest worker."""
        pipeline_seconds = self.kernel_seconds + self.bubble_seconds
        computed = slowest * pipeline_seconds + self.tensor_parallel_seconds
        reduced = np.maximum(computed, self.all_reduced_seconds(slowest))
        ended = reduced + self.update_seconds + self.overhead_seconds
        result: Floats = np.maximum(ended, self.data_loading_seconds)
        return result

    def all_reduced_seconds(self, slowest: Floats) -> Floats:
        """When the last gradient bucket is reduced. A bucket waits until it is ready and those
        before it are reduced, so this is the latest of (ready + all-reduces from it on)."""
        end = np.zeros_like(slowest)
        if not len(self.bucket_ready_seconds):
            return end
        following = np.cumsum(self.bucket_all_reduce_seconds[::-1])[::-1]
        following += self.tensor_parallel_seconds
        rows = max(1, 4_000_000 // len(following))  # 32 MB at a time
        for begin in range(0, len(slowest), rows):
            part = slowest[begin : begin + rows, None]
            end[begin : begin + rows] = np.max(part * self.bucket_ready_seconds + following, axis=1)
        return end

    @property
    def nominal_seconds(self) -> float:
        """Step time without jitter."""
        return float(self.seconds(np.ones(1))[0])

    @property
    def exposed_communication_seconds(self) -> float:
        """Communication that no computation hides, without jitter."""
        computed = self.kernel_seconds + self.bubble_seconds + self.tensor_parallel_seconds
        tail = float(self.all_reduced_seconds(np.ones(1))[0]) - computed
        return self.tensor_parallel_seconds + max(tail, 0.0)


def plan_step(workload: Workload, cluster: Cluster, plan: Synchronous) -> Step:
    """One step of a synchronous plan. Raises InputError if the plan cannot run."""
    check_size(cluster, plan)
    check_cap(cluster.node.gpu, plan.power_cap_watts)
    if workload.measured:
        return _measured_step(workload, cluster, plan)
    shard = shard_workload(workload, cluster, plan)
    traffic = layer_traffic(shard)
    forward = shard.stage_counts @ shard.forward_seconds
    kernels = forward + shard.stage_counts @ shard.backward_seconds
    inside = shard.stage_counts @ (traffic.forward_seconds + traffic.backward_seconds)
    busiest = int(np.argmax(kernels + inside))
    micro_batches = shard.micro_batches
    kernel_seconds = float(kernels[busiest]) * micro_batches
    layer_seconds = float(inside[busiest]) * micro_batches
    bubble_seconds = 0.0
    if plan.pipeline > 1:
        total_seconds, _ = makespan(*stage_seconds(shard), micro_batches, plan.interleave)
        bubble_seconds = total_seconds - kernel_seconds - layer_seconds
    buckets = gradient_buckets(shard, kernel_seconds + bubble_seconds)
    gather_seconds = weight_gather_seconds(
        shard, float(forward[busiest]), float(kernels[busiest] - forward[busiest])
    )
    return Step(
        kernel_seconds=kernel_seconds,
        forward_seconds=float(forward[busiest]) * micro_batches,
        bubble_seconds=bubble_seconds,
        tensor_parallel_seconds=layer_seconds + gather_seconds + buckets.exposed_seconds,
        bucket_ready_seconds=buckets.ready_seconds,
        bucket_all_reduce_seconds=buckets.all_reduce_seconds,
        update_seconds=_update_seconds(shard),
        overhead_seconds=cluster.node.step_seconds + workload.step_overhead_seconds,
        data_loading_seconds=_step_loading_seconds(workload, cluster, plan, shard.global_batch),
        busy_watts=shard.capped_gpu.busy_watts,
        wait_watts=wait_watts(cluster.node.gpu, plan.power_cap_watts),
        clock=shard.capped_gpu.clock,
        samples=shard.global_batch,
        gradient_bytes=_gradient_bytes(shard),
        memory=shard_memory(shard),
        memory_busy_share=shard.memory_busy_share,
    )


def _gradient_bytes(shard: Shard) -> float:
    """Bytes of the gradients that a GPU reduces in a step."""
    if shard.plan.replicas == 1:
        return 0.0
    parameters = float((shard.stage_counts @ shard.parameters).max())
    return parameters * BYTES_PER_ELEMENT[shard.recipe.gradients]


def check_size(cluster: Cluster, plan: BasePlan) -> None:
    """Raises InputError if the plan has more GPUs than the cluster."""
    if plan.nodes is not None:
        require(
            plan.nodes <= cluster.nodes
            and plan.nodes <= plan.gpus <= plan.nodes * cluster.node.gpus,
            f"{plan.gpus} GPUs on {plan.nodes} nodes of {cluster.name}",
            f"it has {cluster.nodes} nodes with {cluster.node.gpus} GPUs each",
        )
    require(
        plan.gpus <= cluster.gpus,
        f"{plan.gpus} GPUs on {cluster.name}",
        f"it has {cluster.gpus}, {cluster.node.gpus} on each node",
    )


def stage_seconds(shard: Shard) -> tuple[list[float], list[float], list[float]]:
    """Seconds of a micro-batch's forward and backward pass on each virtual stage, communication
    inside the layers included, and of each message from one to the next."""
    traffic = layer_traffic(shard)
    forward_seconds = shard.counts @ (shard.forward_seconds + traffic.forward_seconds)
    backward_seconds = shard.counts @ (shard.backward_seconds + traffic.backward_seconds)
    return forward_seconds.tolist(), backward_seconds.tolist(), _message_seconds(shard)


def _message_seconds(shard: Shard) -> list[float]:
    """Of the messages between virtual stages. Tensor-parallel GPUs send a part of it each."""
    plan, node = shard.plan, shard.node
    virtual = plan.pipeline * plan.interleave
    if virtual == 1:
        return []
    transformer = shard.workload.transformer
    if transformer:
        elements = np.full(virtual - 1, transformer.sequence * transformer.hidden / plan.context)
    else:
        last = np.searchsorted(shard.virtual_stage, np.arange(1, virtual)) - 1
        elements = shard.arrays.outputs[shard.order[last]]
    sizes = elements * shard.micro_batch * BYTES_PER_ELEMENT[shard.recipe.activations] / plan.tensor
    # Nodes are filled with the GPUs of one stage first: messages leave the node at its border.
    stage_gpus = plan.gpus // plan.pipeline
    senders = min(stage_gpus, node.gpus)
    seconds = {}
    for size in set(sizes.tolist()):
        seconds[size] = [send_seconds(size, node, crosses, senders) for crosses in (False, True)]
    leaves = [
        stage_gpus >= node.gpus or (s + 1) * stage_gpus % node.gpus == 0 or s == plan.pipeline - 1
        for s in range(plan.pipeline)
    ]
    inside = plan.gpus <= node.gpus
    return [
        seconds[size][leaves[v % plan.pipeline] and not inside]
        for v, size in enumerate(sizes.tolist())
    ]


def _update_seconds(shard: Shard) -> float:
    """The optimizer reads and writes gradients, state and master weights once, and writes the
    weights."""
    node, plan, recipe = shard.node, shard.plan, shard.recipe
    gpu = node.gpu
    weight_bytes = BYTES_PER_ELEMENT[recipe.weights]
    gradient_bytes = BYTES_PER_ELEMENT[recipe.gradients]
    updated_bytes = max(weight_bytes, BYTES_PER_ELEMENT[recipe.master] if recipe.master else 0)
    state_bytes = OPTIMIZER_STATES[shard.optimizer] * BYTES_PER_ELEMENT[recipe.states]
    if plan.adapters:
        parameters = 0.0
    elif plan.sharded == "none":
        parameters = float((shard.stage_counts @ shard.parameters).max())
    else:
        parameters = max(shard.divided_parameters(stage) for stage in range(plan.pipeline))
    moved_bytes = parameters * (2 * (state_bytes + updated_bytes + gradient_bytes) + weight_bytes)
    seconds = moved_bytes / (gpu.memory_bandwidth * gpu.bandwidth_efficiency) + gpu.kernel_seconds
    return seconds * node.contention_factor(node.shared_update, plan.gpus)


def _measured_step(workload: Workload, cluster: Cluster, plan: Synchronous) -> Step:
    """A step whose compute time was measured; the plan can only be data parallel."""
    require(
        plan.model_parallel == plan.expert == 1,
        f"{workload.name} is known by measured steps, so its layers cannot be cut",
        "use tensor = pipeline = context = expert = 1",
    )
    node = placed_node(cluster.node, plan)
    local_batch, global_batch = batch_sizes(workload, plan)
    capped_gpu = under_cap(node.gpu, 1.0, plan.power_cap_watts)
    compute = workload.measured_seconds(node.gpu.name, local_batch) / capped_gpu.clock
    compute *= node.contention_factor(node.shared_compute, plan.gpus)
    gradient_bytes = workload.parameter_count * 4 if plan.data_parallel > 1 else 0.0
    ready, all_reduce = _measured_buckets(compute, gradient_bytes, node, plan)
    return Step(
        kernel_seconds=compute,
        forward_seconds=compute / 3,
        bubble_seconds=0.0,
        tensor_parallel_seconds=0.0,
        bucket_ready_seconds=ready,
        bucket_all_reduce_seconds=all_reduce,
        update_seconds=0.0,
        overhead_seconds=node.step_seconds + workload.step_overhead_seconds,
        data_loading_seconds=_step_loading_seconds(workload, cluster, plan, global_batch),
        busy_watts=capped_gpu.busy_watts,
        wait_watts=wait_watts(node.gpu, plan.power_cap_watts),
        clock=capped_gpu.clock,
        samples=global_batch,
        gradient_bytes=gradient_bytes,
        memory=measured_memory(workload, cluster, plan.optimizer or workload.optimizer),
        memory_busy_share=0.5,  # a measured time does not tell it
    )


def _measured_buckets(
    compute: float, gradient_bytes: float, node: NodeModel, plan: Synchronous
) -> tuple[Floats, Floats]:
    """When each gradient bucket of a measured step is ready, and the seconds of its all-reduce.

    The layers are unknown, so gradients come evenly over the backward pass, two thirds of the step.
    """
    if not gradient_bytes:
        return np.empty(0), np.empty(0)
    count = ceil(gradient_bytes / plan.bucket_bytes) if plan.overlap else 1
    count = min(count, MAX_MEASURED_BUCKETS)
    ready = compute * (1 / 3 + 2 / 3 * np.arange(1, count + 1) / count)
    group = collective_group(plan.data_parallel, node)
    costs = all_reduce_costs(group, node, plan.all_reduce)
    sizes = np.full(count, gradient_bytes / count)
    return ready, np.min([cost.seconds(sizes) for cost in costs], axis=0)


def _parsing_rate(workload: Workload, loader: str | None) -> float:
    """Bytes per second that one reader parses by this loading method, or by the first; infinite if
    the data set has none."""
    loaders = workload.dataset.loaders
    require(
        loader is None or loader in loaders,
        f"no loading method {loader!r} for {workload.name}",
        f"it has {', '.join(loaders) or 'none'}",
    )
    return loaders[loader or next(iter(loaders))].bytes_per_second if loaders else inf


def _step_loading_seconds(
    workload: Workload, cluster: Cluster, plan: BasePlan, global_batch: int
) -> float:
    """Seconds to read one step's samples, limited by the readers' parsing or by storage."""
    data, storage = workload.dataset, cluster.storage
    rate = _parsing_rate(workload, plan.loader) * plan.loaders_per_gpu * plan.gpus
    if data.at_start or not data.sample_bytes:
        return 0.0
    if storage:
        nodes = plan.nodes or -(-plan.gpus // cluster.node.gpus)
        rate = min(rate, storage.bandwidth, storage.reader_bandwidth * nodes)
    return global_batch * data.sample_bytes / rate


def initial_loading_seconds(
    workload: Workload, cluster: Cluster, plan: BasePlan
) -> tuple[float, float]:
    """Seconds in which every GPU reads the whole set before the first step, and seconds that the
    first reader then waits for the last.

    A reader is limited by its parsing or by its share of the storage. Many readers also slow each
    other by metadata and locks: the storage's `contention`.
    """
    data, storage = workload.dataset, cluster.storage
    if not data.at_start:
        return 0.0, 0.0
    rate = _parsing_rate(workload, plan.loader)
    size = data.samples * data.sample_bytes
    seconds = size / rate
    if storage:
        share = min(storage.reader_bandwidth, storage.bandwidth / plan.gpus)
        seconds = max(seconds * (1 + storage.contention * log2(plan.gpus)), size / share)
    return seconds, plan.load_skew * data.samples * data.sample_bytes / rate
