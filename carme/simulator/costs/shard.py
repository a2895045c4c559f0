"""The shard of a workload that one GPU gets under a synchronous plan: layers, samples and kernel
times. Step time and memory are computed from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.errors import InputError
from carme.simulator.costs.kernels import layer_times
from carme.simulator.hardware.cluster import BYTES_PER_ELEMENT, Cluster, Precision
from carme.simulator.hardware.power import CappedGpu, under_cap
from carme.simulator.plans.plan import BasePlan, Synchronous, require
from carme.simulator.workloads.workload import LayerArrays, Optimizer, Workload

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


class Shard(NamedTuple):
    """One GPU's part of a workload. Row times are of one layer and one micro-batch."""

    workload: Workload
    cluster: Cluster
    plan: Synchronous
    precision: Precision
    optimizer: Optimizer
    arrays: LayerArrays
    """The layers, divided by tensor parallelism."""
    stages: list[Rows]
    """Rows of `arrays` that each pipeline stage runs, in order."""
    forward: Floats
    """Seconds of each row."""
    backward: Floats
    """Seconds of each row: gradients of inputs and weights, and recomputation."""
    capped_gpu: CappedGpu
    memory_busy: float
    """Share of the kernels' time in which memory is read or written."""
    parameters: float
    """Of the stage that has the most."""
    global_batch: int
    micro_batch: int
    micro_batches: int

    @property
    def element_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.precision]


def shard_workload(workload: Workload, cluster: Cluster, plan: Synchronous) -> Shard:
    """The shard of one GPU. Raises InputError if the workload cannot be divided by this plan."""
    precision = chosen_precision(workload, cluster, plan)
    local_batch, global_batch = batch_sizes(workload, plan)
    micro_batch = plan.micro_batch or (local_batch if plan.pipeline == 1 else 1)
    micro_batch = min(micro_batch, local_batch)
    arrays = _tensor_parallel(workload, plan)
    gpu = cluster.node.gpu
    times = layer_times(arrays, micro_batch, gpu, precision, cluster.node.launch_seconds)
    capped_gpu = under_cap(gpu, times.activity, plan.power_cap_watts)
    slowdown = times.clock_bound / capped_gpu.clock + 1 - times.clock_bound
    slowdown *= cluster.node.contention_factor(cluster.node.shared_compute, plan.gpus)
    forward = times.forward / arrays.repeat * slowdown
    backward = times.backward / arrays.repeat * slowdown
    if plan.recompute == "full":
        backward = backward + forward
    stages = _stages(workload, forward + backward, plan.pipeline)
    return Shard(
        workload=workload,
        cluster=cluster,
        plan=plan,
        precision=precision,
        optimizer=plan.optimizer or workload.optimizer,
        arrays=arrays,
        stages=stages,
        forward=forward,
        backward=backward,
        capped_gpu=capped_gpu,
        memory_busy=times.memory_busy,
        parameters=max(float(arrays.parameters[rows].sum()) for rows in stages),
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=-(-local_batch // micro_batch),
    )


def chosen_precision(workload: Workload, cluster: Cluster, plan: BasePlan) -> Precision:
    """The plan's precision, else the workload's. Raises InputError if the GPU does not have it."""
    precision = plan.precision or workload.precision
    gpu = cluster.node.gpu
    require(
        precision in gpu.peak_flops,
        f"{gpu.name} has no {precision}",
        f"it has {', '.join(gpu.peak_flops)}; set the precision",
    )
    return precision


def batch_sizes(workload: Workload, plan: Synchronous) -> tuple[int, int]:
    """Local and global batch: samples of a step on one data-parallel copy and on all."""
    scaled = plan.scaled_batch(workload.batch, plan.data_parallel)
    if plan.data == "whole":
        return scaled, scaled * plan.data_parallel
    require(
        scaled >= plan.data_parallel,
        f"a global batch of {scaled} over {plan.data_parallel} copies of the model",
        f"give at least {plan.data_parallel}, or let it grow with the GPUs (batch rule linear)",
    )
    return -(-scaled // plan.data_parallel), scaled


def _tensor_parallel(workload: Workload, plan: Synchronous) -> LayerArrays:
    if plan.tensor == 1:
        return workload.arrays
    transformer = workload.transformer
    if transformer is None:
        raise InputError(
            f"tensor parallelism of {workload.name}", "only transformers can be cut that way"
        )
    require(
        transformer.heads % plan.tensor == 0,
        f"{transformer.heads} attention heads over {plan.tensor} GPUs",
        f"use a divisor of {transformer.heads}",
    )
    return LayerArrays.of(transformer.costs(plan.tensor))


def _stages(workload: Workload, seconds: Floats, pipeline: int) -> list[Rows]:
    """Contiguous layers of about equal time; a transformer is cut between blocks."""
    sequence = workload.sequence
    if pipeline == 1:
        return [sequence]
    transformer = workload.transformer
    layers = transformer.layers if transformer else len(sequence)
    require(
        pipeline <= layers,
        f"a {pipeline}-way pipeline of {layers} layers",
        f"use at most {layers} stages",
    )
    if transformer:
        # Every stage gets as many blocks; the first also embeds, the last computes the loss.
        block = np.full(len(sequence), layers - 1)
        block[0] = 0
        inner = (len(sequence) - 4) // layers
        block[1:-3] = np.repeat(np.arange(layers), inner)
        stage = block * pipeline // layers
    else:
        elapsed = np.cumsum(seconds[sequence])
        stage = np.searchsorted(elapsed / elapsed[-1] * pipeline, np.arange(1, pipeline))
        # Every stage gets at least one layer, whatever the times.
        stage = np.maximum(stage, np.arange(1, pipeline))
        stage = np.minimum(stage, layers - np.arange(pipeline - 1, 0, -1))
        stage = np.searchsorted(stage, np.arange(layers), side="right")
    return [sequence[stage == s] for s in range(pipeline)]
