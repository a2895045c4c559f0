"""What a framework adds to each kernel: the host's time to launch it, and the gap on the device.

The host launches kernels while the GPU computes the earlier ones in its queue. It is hidden while
kernels take longer than their launches. CUDA graphs and compilers launch many kernels at once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Framework = Literal["pytorch", "compiled", "megatron", "tensorflow"]


class LaunchCost(NamedTuple):
    """Of one kernel."""

    host_seconds: float
    """Host time to launch one pass of a layer."""
    device_share: float
    """Fixed time of a kernel on the device, as a share of the GPU's `kernel_seconds`."""
    source: str
    elementwise_share: float = 1.0
    """Memory traffic of layers without a product that is left when a compiler fuses them."""


FRAMEWORKS: dict[Framework, LaunchCost] = {
    "pytorch": LaunchCost(
        1e-4,
        1.0,
        "fitted to epochs of ShuffleNet v2 and ResNet-50 at small batches on a V100 PCIe"
        " (ml-energy/zeus traces)",
    ),
    "megatron": LaunchCost(
        1e-4,
        1.0,
        "fitted to iteration times of GPT models on 2 to 8 A100, activations recomputed"
        " (VIA-Research/vTrain)",
    ),
    "tensorflow": LaunchCost(
        3e-5,
        1.0,
        "assumed: a C++ executor launches without Python, at a third of eager PyTorch's time",
    ),
    "compiled": LaunchCost(
        2e-6,
        0.25,
        "assumed: a CUDA graph replays kernels without the host, about 1.5 µs apart on the device;"
        " a norm, its activation and a sum become one kernel",
        elementwise_share=0.6,
    ),
}
