"""Time and activity of layers on one GPU: a roofline whose products come in tiles and waves.

A dense product is cut in tiles (128 x 128 on GPUs) that the multiprocessors work off in waves; a
product too small to fill a wave leaves some of them idle, which is what makes skinny products
slow. Each kernel takes the longer of its product and its memory traffic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.hardware.cluster import BYTES_PER_ELEMENT, Gpu, Precision
from carme.simulator.workloads.workload import Arrays

Floats = NDArray[np.float64]

# A product with few tiles is also split along its depth, in pieces no shorter than this.
SPLIT_DEPTH = 512


class LayerTimes(NamedTuple):
    """Seconds of each layer (repeats included) for one batch on one GPU."""

    forward: Floats
    backward: Floats
    clocked: float
    """Share of the total that follows the clock: products, not memory traffic or launches."""
    activity: float
    """Mean draw above idle, as a share of that of dense products."""
    traffic: float
    """Share of the time in which memory is read or written."""


def product_seconds(
    m: Floats, n: Floats, k: Floats, count: Floats, gpu: Gpu, rate: float
) -> Floats:
    """Seconds of `count` products m x k x n at a device rate of `rate` operations a second."""
    height = np.where(m <= gpu.tile // 2, gpu.tile // 2, gpu.tile)  # libraries have half tiles, too
    width = np.where(n <= gpu.tile // 2, gpu.tile // 2, gpu.tile)
    tiles = np.maximum(np.ceil(m / height) * np.ceil(n / width) * count, 1)
    splits = np.maximum(np.floor(np.minimum(gpu.units / tiles, k / SPLIT_DEPTH)), 1)
    waves = np.ceil(tiles * splits / gpu.units)
    seconds: Floats = waves * 2 * height * width * (k / splits) / (rate / gpu.units)
    return np.where(m * n * k > 0, seconds, 0.0)


def layer_times(
    arrays: Arrays, batch: float, gpu: Gpu, precision: Precision, launch_seconds: float
) -> LayerTimes:
    """Forward and backward seconds of each layer for `batch` samples at full clock."""
    rate = gpu.peak_flops[precision] * gpu.efficiency(precision)
    size = BYTES_PER_ELEMENT[precision]
    bandwidth = gpu.memory_bandwidth * gpu.bandwidth_efficiency
    # Attention has one product a head and sample; everything else one whose rows are the batch.
    many = arrays.groups > 1
    m = np.where(many, arrays.rows, arrays.rows * batch)
    count = np.where(many, arrays.groups * batch, 1.0)
    n, k = arrays.columns, arrays.depth
    moved = (arrays.inputs + arrays.outputs) * batch + arrays.parameters / arrays.kernels
    memory = moved * size / bandwidth
    times = arrays.repeat * arrays.kernels
    start = arrays.launches * gpu.kernel_seconds

    # One filter a group (depthwise): no tensor product, a plain loop that memory limits.
    depthwise = many & (n < 8)
    n = np.where(depthwise, 0.0, n)

    memory = np.where(m * n * k > 0, gpu.operand_passes * memory, memory)
    together = np.maximum if gpu.overlaps_memory else np.add
    product = product_seconds(m, n, k, count, gpu, rate)
    forward = together(product, memory) + start
    to_inputs = product_seconds(m, k, n, count, gpu, rate)
    to_weights = product_seconds(k, n, m, count, gpu, rate)
    with_product = product > 0
    backward = np.where(
        with_product,
        together(to_inputs, memory) + together(to_weights, memory) + 2 * start,
        2 * memory + start,
    )
    clocked = float(times @ (product + to_inputs + to_weights))
    seconds = float(times @ (forward + backward))
    passes = float(arrays.repeat @ np.where(with_product, 3.0, 2.0))
    # The host launches while the GPU computes: whoever takes longer sets the pace.
    stretch = max(passes * launch_seconds / seconds, 1.0)
    total = seconds * stretch
    gaps = float(times @ (np.where(with_product, 3.0, 2.0) * start))
    moving = max(seconds - clocked - gaps, 0.0)
    activity = (clocked + gpu.power.memory_share * moving) / total
    return LayerTimes(
        forward * times * stretch,
        backward * times * stretch,
        min(clocked / total, 1.0),
        activity,
        min(3 * float(times @ memory) / total, 1.0),
    )
