"""Kernel times from a roofline whose matrix products come in tiles and waves.

A GEMM is cut in tiles (128 x 128 on GPUs) that the multiprocessors compute in waves. A product too
small to fill a wave leaves multiprocessors idle, which makes skinny products slow. Each kernel
takes the longer of its product and its memory traffic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.simulator.costs.products import convolution_factors, product_seconds
from carme.simulator.hardware import Gpu
from carme.simulator.precision import BYTES_PER_ELEMENT, PRECISIONS, Precision
from carme.simulator.workload import Floats, LayerArrays

# A product with few tiles is also split along its depth, in pieces no shorter than this.
SPLIT_DEPTH = 512
AUTOCAST_TRAFFIC = 1.5
"""Bytes that element-wise layers move with autocast to fp16, over those of 16-bit elements: norms,
softmax and sums stay in fp32."""
DEPTHWISE_RATE = 0.15
"""Share of the fp32 peak that depthwise convolutions reach, which have no tensor product; half of
it for gradients of weights. Assumed."""
DILATED_RATES = (0.6, 1.0)
"""Share of the fp32 peak that dilated convolutions reach, in fp32 and on 16-bit data: WaveGlow on
V100 and A100 (NVIDIA DeepLearningExamples)."""
FUSED_TILE = 128
"""Queries of one tile of fused attention."""


class KernelWork(NamedTuple):
    """Seconds of each layer's kernels for one batch on one GPU, at full clock, by what they use."""

    forward_product: Floats
    input_gradient: Floats
    weight_gradient: Floats
    memory: Floats
    """Memory traffic of one pass."""
    casts: Floats
    """Memory traffic of one pass to convert operands to a narrower type."""
    fixed: Floats
    """Of each pass on the device, beside product and memory."""
    kernels: Floats
    """How often each runs in a pass: repeats and the steps of recurrences."""
    launches: Floats
    """Launches of a pass, repeats included."""
    overlaps_memory: bool


class LayerTimes(NamedTuple):
    """Seconds of each layer (repeats included) for one batch on one GPU."""

    forward_seconds: Floats
    backward_seconds: Floats
    activity: float
    """Mean draw above idle, as a share of the draw above idle in large products."""
    memory_busy_share: float
    """Share of the time in which memory is read or written."""


def gemm_seconds(
    m: Floats,
    n: Floats,
    k: Floats,
    count: Floats,
    gpu: Gpu,
    flops_per_second: float | Floats,
    tensor: bool = False,
) -> Floats:
    """Seconds of `count` products m x k times k x n on a GPU that computes `flops_per_second`."""
    if gpu.kind == "gpu":
        return product_seconds(m, n, k, count, gpu, flops_per_second, tensor)
    half = gpu.tile // 2
    height = np.where(m <= half, half, gpu.tile)  # libraries have half tiles, too
    width = np.where(n <= half, half, gpu.tile)
    tiles = np.maximum(np.ceil(m / height) * np.ceil(n / width) * count, 1)
    splits = np.maximum(np.floor(np.minimum(gpu.units / tiles, k / SPLIT_DEPTH)), 1)
    waves = np.ceil(tiles * splits / gpu.units)
    seconds: Floats = waves * 2 * height * width * (k / splits) / (flops_per_second / gpu.units)
    return np.where(m * n * k > 0, seconds, 0.0)


def kernel_work(
    arrays: LayerArrays,
    batch: float,
    gpu: Gpu,
    precision: Precision,
    device_share: float = 1.0,
    elementwise_share: float = 1.0,
) -> KernelWork:
    """The work of `batch` samples; `device_share` of the GPU's fixed time for each kernel, and
    `elementwise_share` of the traffic of layers without a product."""
    recipe = PRECISIONS[precision]
    wide_bytes = BYTES_PER_ELEMENT[recipe.activations]
    narrow_bytes = BYTES_PER_ELEMENT[recipe.compute]
    narrow_rate = gpu.peak(recipe.compute) * gpu.efficiency(recipe.compute)
    wide_rate = gpu.peak(recipe.activations) * gpu.efficiency(recipe.activations)
    if recipe.compute == "tf32":
        wide_rate = narrow_rate  # all products, also those of attention
    bandwidth = gpu.memory_bandwidth * gpu.bandwidth_efficiency
    # Attention has one product for each head and sample; other layers have one for the batch, or
    # one for each expert.
    is_grouped = arrays.groups > 1
    experts = np.maximum(arrays.experts, 1)
    m = np.where(is_grouped, arrays.rows, arrays.rows * batch / experts)
    count = np.where(is_grouped, arrays.groups * batch, experts)
    n, k = arrays.columns, arrays.depth
    # Depthwise (one filter for each group): no tensor product, a plain loop that memory limits.
    n = np.where(is_grouped & (n < 8), 0.0, n)
    has_product = m * n * k > 0
    rate: float | Floats = narrow_rate
    read_bytes: float | Floats = wide_bytes
    casts = np.zeros_like(m)
    if recipe.compute != recipe.activations:
        is_narrow = has_product & (arrays.activation_type == 0)
        rate = np.where(is_narrow, narrow_rate, wide_rate)
        read_bytes = np.where(is_narrow, narrow_bytes, wide_bytes)
        if narrow_bytes < wide_bytes:
            # Inputs are read wide, and written narrow twice: as they are and transposed.
            cast_bytes = arrays.inputs * batch * (wide_bytes + 2 * narrow_bytes)
            casts = np.where(is_narrow, cast_bytes / bandwidth, 0.0)
    moved_bytes = (
        arrays.inputs * batch + arrays.parameters / arrays.kernels
    ) * read_bytes + arrays.outputs * (batch * wide_bytes)
    traffic = elementwise_share
    if recipe.working_copy and recipe.weights == "fp32" and recipe.compute == "fp16":
        traffic *= AUTOCAST_TRAFFIC
    if traffic != 1:
        moved_bytes = moved_bytes * np.where(has_product, 1.0, traffic)
    memory = moved_bytes / bandwidth
    if gpu.operand_passes != 1:
        memory *= np.where(has_product, gpu.operand_passes, 1.0)
    tensor = recipe.compute not in ("fp64", "fp32")
    forward = gemm_seconds(m, n, k, count, gpu, rate, tensor)
    input_gradient = gemm_seconds(m, k, n, count, gpu, rate, tensor)
    weight_gradient = gemm_seconds(k, n, m, count, gpu, rate, tensor)
    if arrays.window.any():
        channels = k / np.maximum(arrays.window, 1)
        factors = convolution_factors(arrays.window, arrays.stride, channels, recipe.compute, gpu)
        forward = forward * factors[0]
        input_gradient = input_gradient * factors[1]
        weight_gradient = weight_gradient * factors[2]
    is_depthwise = is_grouped & (arrays.columns < 8) & (arrays.window > 0)
    if is_depthwise.any():
        flops = 2 * arrays.rows * arrays.columns * arrays.depth * arrays.groups * batch
        seconds = flops / (gpu.peak("fp32") * DEPTHWISE_RATE)
        forward = np.where(is_depthwise, seconds, forward)
        input_gradient = np.where(is_depthwise, seconds, input_gradient)
        weight_gradient = np.where(is_depthwise, 2 * seconds, weight_gradient)
    if arrays.dilated.any():
        seconds = 2 * m * n * k * count / (gpu.peak("fp32") * DILATED_RATES[wide_bytes == 2])
        is_dilated = arrays.dilated > 0
        forward = np.where(is_dilated, seconds, forward)
        input_gradient = np.where(is_dilated, seconds, input_gradient)
        weight_gradient = np.where(is_dilated, seconds, weight_gradient)
    is_fused = arrays.fused > 0
    if is_fused.any():
        flops = 2 * m * n * k * count * arrays.density
        tiles = np.maximum(count * np.ceil(m / FUSED_TILE), 1)
        peak = gpu.peak(recipe.activations) * np.minimum(tiles / gpu.units, 1)
        forward_share, backward_share = gpu.fused_attention(int(arrays.fused.max()))
        fused = flops / (peak * forward_share)
        half = flops * arrays.backward_products / (2 * peak * backward_share)
        forward = np.where(is_fused, fused, forward)
        input_gradient = np.where(is_fused, half, input_gradient)
        weight_gradient = np.where(is_fused, half, weight_gradient)
    return KernelWork(
        forward_product=forward,
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        memory=memory,
        casts=casts,
        fixed=arrays.launches * (gpu.kernel_seconds * device_share),
        kernels=arrays.repeat * arrays.kernels,
        launches=arrays.repeat,
        overlaps_memory=gpu.overlaps_memory,
    )


def layer_times(
    work: KernelWork, gpu: Gpu, launch_seconds: float = 0.0, clock: float = 1.0
) -> LayerTimes:
    """Forward and backward seconds of each layer. A lower clock stretches products, but not those
    that hide behind their memory traffic."""
    combine = np.maximum if work.overlaps_memory else np.add
    has_product = work.forward_product > 0
    has_weight_gradient = work.weight_gradient > 0  # not of frozen weights
    forward_seconds = combine(work.forward_product / clock, work.memory) + work.fixed + work.casts
    backward_seconds = np.where(
        has_product,
        combine(work.input_gradient / clock, work.memory)
        + has_weight_gradient * (combine(work.weight_gradient / clock, work.memory) + work.fixed)
        + work.fixed
        + work.casts,
        2 * work.memory + work.fixed,
    )
    passes = np.where(has_product & has_weight_gradient, 3.0, 2.0)
    products = work.forward_product + work.input_gradient + work.weight_gradient
    product_seconds = float(work.kernels @ products) / clock
    seconds = float(work.kernels @ (forward_seconds + backward_seconds))
    # The host launches kernels while the GPU computes: the slower of the two sets the time.
    host_factor = max(float(work.launches @ passes) * launch_seconds / seconds, 1.0)
    total_seconds = seconds * host_factor
    fixed_seconds = float(work.kernels @ (passes * work.fixed))
    memory_bound_seconds = max(seconds - product_seconds - fixed_seconds, 0.0)
    busy = product_seconds + gpu.power.memory_share * memory_bound_seconds
    return LayerTimes(
        forward_seconds=forward_seconds * work.kernels * host_factor,
        backward_seconds=backward_seconds * work.kernels * host_factor,
        activity=min(busy / total_seconds, 1.0),
        memory_busy_share=min(3 * float(work.kernels @ work.memory) / total_seconds, 1.0),
    )
