"""Achieved rate of matrix products and convolutions by their shape.

A library has kernels for tiles of several sizes, and may split a product along its depth. The
fastest of them is meant: large tiles reuse what they read and run at full rate; small ones waste
less where a product is narrow. Each tile also takes the time of `PROLOGUE_DEPTH` further steps to
begin and to end. The constants are fitted to products of DeepBench on seven GPUs, fp32 and fp16.

A convolution is the product that it is equivalent to, times a factor for its kind and pass:
Winograd's algorithm computes 3 x 3 windows in fp32 with less than half of the operations, gradients
of weights reduce over all positions, and tensor cores want eight channels at least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.simulator.hardware import Gpu
from carme.simulator.workload import Floats


class _Kernel(NamedTuple):
    """Height and width of a tile, its rate relative to the largest, pieces along the depth."""

    height: float
    width: float
    rate: float
    pieces: float


_TILES = ((128, 128, 1.0), (128, 64, 0.85), (64, 64, 0.85), (32, 32, 0.33))
_KERNELS = [_Kernel(*tile, pieces) for tile in _TILES for pieces in (1.0, 3.0, 10.0)]
_HEIGHT, _WIDTH, _RATE, _PIECES = (
    np.array(column)[:, None] for column in zip(*_KERNELS, strict=True)
)
_TENSOR_RATE = np.where(_RATE == 0.85, 0.6, _RATE)
"""Tensor cores lose more with tiles that are read less often."""
PROLOGUE_DEPTH = 96.0
"""Depth that a tile's begin and end are worth."""
SHORTEST_PIECE = 256.0
"""A product is not split into pieces of less depth."""
_SPLIT_BYTES = np.where(_PIECES > 1, 8 * _PIECES, 0.0)
"""Written and read for each element, to add the pieces up in fp32."""
_NEVER = np.where(_PIECES > 1, 1e30, 0.0)


def product_seconds(
    m: Floats,
    n: Floats,
    k: Floats,
    count: Floats,
    gpu: Gpu,
    flops_per_second: float | Floats,
    tensor: bool = False,
) -> Floats:
    """Seconds of `count` products m x k times k x n by the fastest kernel, on tensor cores or
    without; `flops_per_second` is what large products reach."""
    scale = gpu.tile / 128
    tiles = np.ceil(np.maximum(m, n) / (_HEIGHT * scale))
    tiles *= np.ceil(np.minimum(m, n) / (_WIDTH * scale))
    waves = np.ceil(tiles * (_PIECES * count / gpu.units))
    wave_flops = (2 * gpu.units * scale**2) * _HEIGHT * _WIDTH / (_TENSOR_RATE if tensor else _RATE)
    seconds = waves * (k / _PIECES + PROLOGUE_DEPTH) * (wave_flops / flops_per_second)
    seconds += m * n * count * (_SPLIT_BYTES / gpu.memory_bandwidth)
    seconds += _NEVER * (k < SHORTEST_PIECE * _PIECES)
    return np.where(m * n * k > 0, seconds.min(axis=0), 0.0)


class ConvolutionFactors(NamedTuple):
    """Time of a convolution over that of its product, by pass."""

    forward: float
    input_gradient: float
    weight_gradient: float


# Geometric means over the convolutions of DeepBench (training): fp32 on V100, T4, TITAN X and Xp,
# 1080 Ti, M40; tensor cores on V100 and T4. Rows: 1 x 1; 1 x 1 with a stride; larger windows; these
# with a stride; fewer than eight channels.
_FP32 = (
    ConvolutionFactors(0.80, 0.80, 1.45),
    ConvolutionFactors(0.95, 1.90, 1.50),
    ConvolutionFactors(0.56, 0.53, 0.80),
    ConvolutionFactors(0.90, 1.25, 1.00),
    ConvolutionFactors(0.35, 0.0, 0.85),
)
_TENSOR = (
    ConvolutionFactors(1.20, 1.50, 1.90),
    ConvolutionFactors(1.40, 2.50, 2.20),
    ConvolutionFactors(1.05, 1.20, 1.40),
    ConvolutionFactors(1.25, 1.50, 1.30),
    ConvolutionFactors(3.0, 0.0, 5.0),
)
# Since Ampere libraries keep channels last. No table has single convolutions of it: assumed
# from whole networks (ResNet-50, RetinaNet and 3D U-Net of MLPerf).
_CHANNELS_LAST = (
    ConvolutionFactors(1.00, 1.10, 1.40),
    ConvolutionFactors(1.15, 1.70, 1.50),
    ConvolutionFactors(0.85, 0.95, 1.10),
    ConvolutionFactors(1.00, 1.20, 1.10),
    ConvolutionFactors(2.0, 0.0, 3.0),
)
_PLAIN = (ConvolutionFactors(1.0, 1.0, 1.0),) * 4 + (ConvolutionFactors(1.0, 0.0, 1.0),)
_TABLES = {"fp32": _FP32, "fp64": _PLAIN}


def convolution_factors(
    window: Floats, stride: Floats, channels: Floats, number_type: str, gpu: Gpu
) -> tuple[Floats, Floats, Floats]:
    """Factors of the three passes; 1 where `window`, the positions of the kernel, is 0."""
    kind = np.where(window > 1, 2, 0) + (stride > 1)
    kind = np.where(channels < 8, 4, kind)
    tensor = _CHANNELS_LAST if "bf16" in gpu.peak_flops else _TENSOR
    table = np.array(_TABLES.get(number_type, tensor))
    factors = np.where((window > 0)[:, None], table[kind], 1.0)
    return factors[:, 0], factors[:, 1], factors[:, 2]
