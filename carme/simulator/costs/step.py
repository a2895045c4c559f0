"""One synchronous step: seconds of each part, before jitter; and reading the data set.

The parts are those of the busiest GPU. `Step.seconds(slowest)` combines them, given the jitter
factor of the slowest worker: it multiplies kernel times, not communication.
"""

from __future__ import annotations

from math import inf, log2
from typing import NamedTuple

import numpy as np

from carme.simulator.costs.collectives import (
    all_reduce_costs,
    all_reduce_seconds,
    collective_group,
    send_seconds,
)
from carme.simulator.costs.memory import Memory, measured_memory, shard_memory
from carme.simulator.costs.shard import Shard, batch_sizes, shard_workload
from carme.simulator.hardware import Cluster, check_cap, under_cap, wait_watts
from carme.simulator.plans import BasePlan, Synchronous, makespan, require
from carme.simulator.workload import OPTIMIZER_STATES, Floats, Workload


class Step(NamedTuple):
    """Seconds of the parts of a step, and the draw of a GPU in them."""

    kernel_seconds: float
    """Forward and backward kernels of all micro-batches."""
    forward_seconds: float
    """Of these, the forward pass."""
    bubble_seconds: float
    """Idle in the pipeline, messages between stages included."""
    tensor_parallel_seconds: float
    """All-reduces inside layers, which nothing hides."""
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
    kernel_seconds, forward_seconds, bubble_seconds = _pipeline(shard)
    bucket_ready_seconds, bucket_all_reduce_seconds = _buckets(
        shard, kernel_seconds, bubble_seconds
    )
    return Step(
        kernel_seconds=kernel_seconds,
        forward_seconds=forward_seconds,
        bubble_seconds=bubble_seconds,
        tensor_parallel_seconds=_tensor_parallel_seconds(shard),
        bucket_ready_seconds=bucket_ready_seconds,
        bucket_all_reduce_seconds=bucket_all_reduce_seconds,
        update_seconds=_update_seconds(shard),
        overhead_seconds=cluster.node.step_seconds + workload.step_overhead_seconds,
        data_loading_seconds=_step_loading_seconds(workload, cluster, plan, shard.global_batch),
        busy_watts=shard.capped_gpu.busy_watts,
        wait_watts=wait_watts(cluster.node.gpu, plan.power_cap_watts),
        clock=shard.capped_gpu.clock,
        samples=shard.global_batch,
        gradient_bytes=shard.parameters * shard.element_bytes if plan.data_parallel > 1 else 0.0,
        memory=shard_memory(shard),
        memory_busy_share=shard.memory_busy_share,
    )


def check_size(cluster: Cluster, plan: BasePlan) -> None:
    """Raises InputError if the plan has more GPUs than the cluster."""
    require(
        plan.gpus <= cluster.gpus,
        f"{plan.gpus} GPUs on {cluster.name}",
        f"it has {cluster.gpus}, {cluster.node.gpus} on each node",
    )


def stage_seconds(shard: Shard) -> tuple[list[float], list[float], list[float]]:
    """Seconds of a micro-batch's forward and backward pass on each stage, and of each message from
    a stage to the next."""
    forward_seconds = [float(shard.forward_seconds[rows].sum()) for rows in shard.stages]
    backward_seconds = [float(shard.backward_seconds[rows].sum()) for rows in shard.stages]
    plan, node = shard.plan, shard.cluster.node
    # Nodes are filled with tensor-parallel GPUs first, then stages: messages may leave the node.
    leaves_node = plan.tensor * plan.pipeline > node.gpus
    sample_bytes = shard.element_bytes * shard.micro_batch
    message_seconds = [
        send_seconds(float(shard.arrays.outputs[rows[-1]]) * sample_bytes, node, leaves_node)
        for rows in shard.stages[:-1]
    ]
    return forward_seconds, backward_seconds, message_seconds


def _pipeline(shard: Shard) -> tuple[float, float, float]:
    """Kernel seconds of the busiest stage, its forward seconds, and its idle seconds in the
    pipeline (the bubble)."""
    forward_seconds, backward_seconds, message_seconds = stage_seconds(shard)
    kernel_seconds, stage = max(
        (f + b, -s) for s, (f, b) in enumerate(zip(forward_seconds, backward_seconds, strict=True))
    )
    kernel_seconds *= shard.micro_batches
    bubble_seconds = 0.0
    if message_seconds:
        total_seconds, _ = makespan(
            forward_seconds, backward_seconds, message_seconds, shard.micro_batches
        )
        bubble_seconds = total_seconds - kernel_seconds
    return kernel_seconds, forward_seconds[-stage] * shard.micro_batches, bubble_seconds


def _tensor_parallel_seconds(shard: Shard) -> float:
    """All-reduces inside transformer blocks: two forward, two backward, two for recomputation."""
    transformer, plan, node = shard.workload.transformer, shard.plan, shard.cluster.node
    if plan.tensor == 1 or transformer is None:
        return 0.0
    elements = shard.micro_batch * transformer.sequence * transformer.hidden
    group = collective_group(plan.tensor, node)
    seconds = all_reduce_seconds(elements * shard.element_bytes, group, node, plan.all_reduce)
    per_layer = 6 if plan.recompute == "full" else 4
    layers = -(-transformer.layers // plan.pipeline)
    # Every micro-batch passes every stage, so these all-reduces lengthen the bubble, too.
    slots = shard.micro_batches + plan.pipeline - 1
    return per_layer * layers * slots * seconds


def _buckets(shard: Shard, kernel_seconds: float, bubble_seconds: float) -> tuple[Floats, Floats]:
    """When each gradient bucket is ready, and the seconds of its all-reduce."""
    plan, node = shard.plan, shard.cluster.node
    if plan.data_parallel == 1:
        return np.empty(0), np.empty(0)
    group = collective_group(plan.data_parallel, node, plan.tensor * plan.pipeline)
    algorithms = all_reduce_costs(group, node, plan.all_reduce)
    if plan.overlap and plan.pipeline == 1:
        rows = shard.stages[0][::-1]
        # The last micro-batch's backward pass, layer by layer from the end.
        elapsed = np.cumsum(shard.backward_seconds[rows])
        gradient_bytes = np.cumsum(shard.arrays.parameters[rows] * shard.element_bytes)
        bucket = np.ceil(gradient_bytes / plan.bucket_bytes)
        last_row = np.append(np.flatnonzero(np.diff(bucket)), len(rows) - 1)
        size = np.diff(gradient_bytes[last_row], prepend=0.0)
        ready = kernel_seconds - elapsed[-1] + elapsed[last_row]
        ready, size = ready[size > 0], size[size > 0]
    else:
        size = np.array([shard.parameters * shard.element_bytes])
        # The first stage of a pipeline ends last, so its all-reduce follows the whole schedule.
        ready = np.array([kernel_seconds + bubble_seconds])
    return ready, np.min([cost.seconds(size) for cost in algorithms], axis=0)


def _update_seconds(shard: Shard) -> float:
    """The optimizer reads and writes weights, gradients and state once."""
    node = shard.cluster.node
    gpu = node.gpu
    state = 2 * 4 * (OPTIMIZER_STATES[shard.optimizer] + 1)
    moved_bytes = shard.parameters * (state + 3 * shard.element_bytes)
    if shard.plan.shard_optimizer:
        moved_bytes /= shard.plan.data_parallel
    seconds = moved_bytes / (gpu.memory_bandwidth * gpu.bandwidth_efficiency) + gpu.kernel_seconds
    return seconds * node.contention_factor(node.shared_update, shard.plan.gpus)


def _measured_step(workload: Workload, cluster: Cluster, plan: Synchronous) -> Step:
    """A step whose compute time was measured; the plan can only be data parallel."""
    require(
        plan.tensor == plan.pipeline == 1,
        f"{workload.name} is known by measured steps, so its layers cannot be cut",
        "use tensor = 1 and pipeline = 1",
    )
    node = cluster.node
    local_batch, global_batch = batch_sizes(workload, plan)
    capped_gpu = under_cap(node.gpu, 1.0, plan.power_cap_watts)
    compute = workload.measured_seconds(node.gpu.name, local_batch) / capped_gpu.clock
    compute *= node.contention_factor(node.shared_compute, plan.gpus)
    has_gradients = plan.data_parallel > 1
    gradient_bytes = workload.parameter_count * 4 if has_gradients else 0.0
    group = collective_group(plan.data_parallel, node)
    all_reduce = all_reduce_seconds(gradient_bytes, group, node, plan.all_reduce)
    return Step(
        kernel_seconds=compute,
        forward_seconds=compute / 3,
        bubble_seconds=0.0,
        tensor_parallel_seconds=0.0,
        bucket_ready_seconds=np.array([compute]) if has_gradients else np.empty(0),
        bucket_all_reduce_seconds=np.array([all_reduce]) if has_gradients else np.empty(0),
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
        nodes = -(-plan.gpus // cluster.node.gpus)
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
