"""Kernel times of layers on one GPU: a roofline whose matrix products come in tiles and waves.

A GEMM is cut in tiles (128 x 128 on GPUs) that the multiprocessors compute in waves. A product too
small to fill a wave leaves multiprocessors idle, which makes skinny products slow. Each kernel
takes the longer of its product and its memory traffic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.hardware.cluster import BYTES_PER_ELEMENT, Gpu, Precision
from carme.simulator.workloads.workload import LayerArrays

Floats = NDArray[np.float64]

# A product with few tiles is also split along its depth, in pieces no shorter than this.
SPLIT_DEPTH = 512


class LayerTimes(NamedTuple):
    """Seconds of each layer (repeats included) for one batch on one GPU."""

    forward: Floats
    backward: Floats
    clock_bound: float
    """Share of the total that scales with the clock: products, not memory traffic or launches."""
    activity: float
    """Mean draw above idle, as a share of the draw above idle in large products."""
    memory_busy: float
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
    memory = elements * element_bytes / bandwidth
    kernels = arrays.repeat * arrays.kernels
    launch = arrays.launches * gpu.kernel_seconds

    # Depthwise (one filter for each group): no tensor product, a plain loop that memory limits.
    n = np.where(is_grouped & (n < 8), 0.0, n)

    memory = np.where(m * n * k > 0, gpu.operand_passes * memory, memory)
    combine = np.maximum if gpu.overlaps_memory else np.add
    forward_product = gemm_seconds(m, n, k, count, gpu, flops_per_second)
    input_gradients = gemm_seconds(m, k, n, count, gpu, flops_per_second)
    weight_gradients = gemm_seconds(k, n, m, count, gpu, flops_per_second)
    has_product = forward_product > 0
    forward = combine(forward_product, memory) + launch
    backward = np.where(
        has_product,
        combine(input_gradients, memory) + combine(weight_gradients, memory) + 2 * launch,
        2 * memory + launch,
    )
    passes = np.where(has_product, 3.0, 2.0)
    products = float(kernels @ (forward_product + input_gradients + weight_gradients))
    seconds = float(kernels @ (forward + backward))
    # The host launches kernels while the GPU computes: the slower of the two sets the time.
    host_factor = max(float(arrays.repeat @ passes) * launch_seconds / seconds, 1.0)
    total = seconds * host_factor
    launches = float(kernels @ (passes * launch))
    memory_bound = max(seconds - products - launches, 0.0)
    return LayerTimes(
        forward=forward * kernels * host_factor,
        backward=backward * kernels * host_factor,
        clock_bound=min(products / total, 1.0),
        activity=(products + gpu.power.memory_share * memory_bound) / total,
        memory_busy=min(3 * float(kernels @ memory) / total, 1.0),
    )
