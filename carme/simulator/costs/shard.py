"""The shard of a workload that one GPU gets under a synchronous plan: layers, samples and kernel
times. Step time and memory are computed from it.

Kernel times come from a roofline whose matrix products come in tiles and waves. A GEMM is cut in
tiles (128 x 128 on GPUs) that the multiprocessors compute in waves. A product too small to fill a
wave leaves multiprocessors idle, which makes skinny products slow. Each kernel takes the longer of
its product and its memory traffic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.errors import InputError
from carme.simulator.hardware import (
    BYTES_PER_ELEMENT,
    CappedGpu,
    Cluster,
    Gpu,
    Precision,
    under_cap,
)
from carme.simulator.plans import Synchronous, require
from carme.simulator.workload import Floats, LayerArrays, Optimizer, Workload

# A product with few tiles is also split along its depth, in pieces no shorter than this.
SPLIT_DEPTH = 512


class LayerTimes(NamedTuple):
    """Seconds of each layer (repeats included) for one batch on one GPU."""

    forward_seconds: Floats
    backward_seconds: Floats
    clock_bound_share: float
    """Share of the total that scales with the clock: products, not memory traffic or launches."""
    activity: float
    """Mean draw above idle, as a share of the draw above idle in large products."""
    memory_busy_share: float
    """Share of the time in which memory is read or written."""


def gemm_seconds(
    m: Floats, n: Floats, k: Floats, count: Floats, gpu: Gpu, flops_per_second: float
) -> Floats:
    """Seconds of `count` products m x k times k x n on a GPU that computes `flops_per_second`."""
    height = np.where(m <= gpu.tile // 2, gpu.tile // 2, gpu.tile)  # libraries have half tiles, too
    width = np.where(n <= gpu.tile // 2, gpu.tile // 2, gpu.tile)
    tiles = np.maximum(np.ceil(m / height) * np.ceil(n / width) * count, 1)
    splits = np.maximum(np.floor(np.minimum(gpu.units / tiles, k / SPLIT_DEPTH)), 1)
    waves = np.ceil(tiles * splits / gpu.units)
    seconds: Floats = waves * 2 * height * width * (k / splits) / (flops_per_second / gpu.units)
    return np.where(m * n * k > 0, seconds, 0.0)


def layer_times(
    arrays: LayerArrays, batch: float, gpu: Gpu, precision: Precision, launch_seconds: float
) -> LayerTimes:
    """Forward and backward seconds of each layer for `batch` samples at full clock."""
    flops_per_second = gpu.peak_flops[precision] * gpu.efficiency(precision)
    element_bytes = BYTES_PER_ELEMENT[precision]
    bandwidth = gpu.memory_bandwidth * gpu.bandwidth_efficiency
    # Attention has one product for each head and sample; other layers have one for the batch.
    is_grouped = arrays.groups > 1
    m = np.where(is_grouped, arrays.rows, arrays.rows * batch)
    count = np.where(is_grouped, arrays.groups * batch, 1.0)
    n, k = arrays.columns, arrays.depth
    elements = (arrays.inputs + arrays.outputs) * batch + arrays.parameters / arrays.kernels
    memory_traffic_seconds = elements * element_bytes / bandwidth
    kernel_count = arrays.repeat * arrays.kernels
    launch_overhead_seconds = arrays.launches * gpu.kernel_seconds

    # Depthwise (one filter for each group): no tensor product, a plain loop that memory limits.
    n = np.where(is_grouped & (n < 8), 0.0, n)

    memory_traffic_seconds *= np.where(m * n * k > 0, gpu.operand_passes, 1.0)
    combine = np.maximum if gpu.overlaps_memory else np.add
    forward_product_seconds = gemm_seconds(m, n, k, count, gpu, flops_per_second)
    input_gradient_seconds = gemm_seconds(m, k, n, count, gpu, flops_per_second)
    weight_gradient_seconds = gemm_seconds(k, n, m, count, gpu, flops_per_second)
    has_product = forward_product_seconds > 0
    forward_seconds = (
        combine(forward_product_seconds, memory_traffic_seconds) + launch_overhead_seconds
    )
    backward_seconds = np.where(
        has_product,
        combine(input_gradient_seconds, memory_traffic_seconds)
        + combine(weight_gradient_seconds, memory_traffic_seconds)
        + 2 * launch_overhead_seconds,
        2 * memory_traffic_seconds + launch_overhead_seconds,
    )
    passes = np.where(has_product, 3.0, 2.0)
    product_seconds = float(
        kernel_count @ (forward_product_seconds + input_gradient_seconds + weight_gradient_seconds)
    )
    seconds = float(kernel_count @ (forward_seconds + backward_seconds))
    # The host launches kernels while the GPU computes: the slower of the two sets the time.
    host_factor = max(float(arrays.repeat @ passes) * launch_seconds / seconds, 1.0)
    total_seconds = seconds * host_factor
    all_launches_seconds = float(kernel_count @ (passes * launch_overhead_seconds))
    memory_bound_seconds = max(seconds - product_seconds - all_launches_seconds, 0.0)
    return LayerTimes(
        forward_seconds=forward_seconds * kernel_count * host_factor,
        backward_seconds=backward_seconds * kernel_count * host_factor,
        clock_bound_share=min(product_seconds / total_seconds, 1.0),
        activity=(product_seconds + gpu.power.memory_share * memory_bound_seconds) / total_seconds,
        memory_busy_share=min(
            3 * float(kernel_count @ memory_traffic_seconds) / total_seconds, 1.0
        ),
    )


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
    forward_seconds: Floats
    """Seconds of each row."""
    backward_seconds: Floats
    """Seconds of each row: gradients of inputs and weights, and recomputation."""
    capped_gpu: CappedGpu
    memory_busy_share: float
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
    precision, gpu = plan.precision or workload.precision, cluster.node.gpu
    require(
        precision in gpu.peak_flops,
        f"{gpu.name} has no {precision}",
        f"it has {', '.join(gpu.peak_flops)}; set the precision",
    )
    local_batch, global_batch = batch_sizes(workload, plan)
    micro_batch = plan.micro_batch or (local_batch if plan.pipeline == 1 else 1)
    micro_batch = min(micro_batch, local_batch)
    arrays = _tensor_parallel(workload, plan)
    times = layer_times(arrays, micro_batch, gpu, precision, cluster.node.launch_seconds)
    capped_gpu = under_cap(gpu, times.activity, plan.power_cap_watts)
    slowdown = times.clock_bound_share / capped_gpu.clock + 1 - times.clock_bound_share
    slowdown *= cluster.node.contention_factor(cluster.node.shared_compute, plan.gpus)
    forward_seconds = times.forward_seconds / arrays.repeat * slowdown
    backward_seconds = times.backward_seconds / arrays.repeat * slowdown
    if plan.recompute == "full":
        backward_seconds = backward_seconds + forward_seconds
    stages = _stages(workload, forward_seconds + backward_seconds, plan.pipeline)
    return Shard(
        workload=workload,
        cluster=cluster,
        plan=plan,
        precision=precision,
        optimizer=plan.optimizer or workload.optimizer,
        arrays=arrays,
        stages=stages,
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
        capped_gpu=capped_gpu,
        memory_busy_share=times.memory_busy_share,
        parameters=max(float(arrays.parameters[rows].sum()) for rows in stages),
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=-(-local_batch // micro_batch),
    )


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
