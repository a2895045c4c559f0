"""Hardware: GPUs and the power they draw, links, nodes, storage and the cluster of them.

All figures are in SI base units: bytes, seconds, bytes per second, flops per second, watts. Each
entry has the sources of its figures; `carme hardware NAME` prints them.
"""

from __future__ import annotations

from math import log2
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme.errors import InputError
from carme.simulator.cap_curves import Architecture, cap_curve, check_bounds
from carme.simulator.precision import FALLBACK_TYPES, NumberType

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
FusedKernel = Literal["flash-1", "flash-2", "flash-3"]
FUSED_KERNELS: tuple[FusedKernel, ...] = ("flash-1", "flash-2", "flash-3")
DEFAULT_ATTENTION_EFFICIENCY = (0.5, 0.4)
"""Where no figure is known for the GPU: between those of A100 and H100 with FlashAttention 2."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class SimulatorModel(BaseModel):
    """A frozen input of the simulator; unknown fields are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class LibraryEntry(SimulatorModel):
    """An entry of the library, read from a TOML file."""

    name: Name
    title: str = ""
    """The name that people use."""
    sources: dict[str, str] = {}
    """Where each figure comes from."""


class Power(SimulatorModel):
    """The draw of a device by its activity, and its clock under a power cap."""

    idle_watts: NotNegative
    limit_watts: Positive
    """The default power limit; a cap may be lower, not higher."""
    minimum_watts: NotNegative = 0
    """The lowest cap that the device accepts."""
    busy_watts: Positive
    """Draw in large matrix products, uncapped."""
    memory_share: Share = 0.75
    """Draw above idle of memory-bound kernels, as a share of that of large products."""
    cap_curve: tuple[tuple[float, float], ...] | None = None
    """Points (cap above idle over the uncapped mean draw above idle, relative clock), where it was
    measured on this device; the architecture's if unset."""
    cap_range: tuple[Share, Share] | None = None
    """Caps, as shares of the limit, between which `cap_curve` was measured."""

    @model_validator(mode="after")
    def _in_order(self) -> Power:
        if not self.idle_watts <= self.busy_watts <= self.limit_watts * 1.05:
            raise ValueError("idle_watts ≤ busy_watts ≤ limit_watts is needed")
        if self.cap_curve:
            check_bounds(self.cap_curve)
        return self


class Gpu(LibraryEntry):
    """A GPU, or a CPU socket that computes like one."""

    kind: Literal["gpu", "cpu"] = "gpu"
    peak_flops: dict[NumberType, Positive]
    """Peak flops per second by type of number, without sparsity; a missing one is unsupported."""
    memory_bytes: Positive
    memory_bandwidth: Positive
    units: Count
    """Multiprocessors (cores of a CPU), which compute the tiles of a product in waves."""
    tile: Count = 128
    """Edge of these tiles; narrow products use half tiles."""
    overlaps_memory: bool = True
    """Memory traffic overlaps with computation; a single core does one after the other."""
    operand_passes: Annotated[float, Field(ge=1, le=10)] = 1
    """How often a product moves its operands: 2 where they are packed first."""
    power: Power
    architecture: Architecture | None = None
    """Decides how the clock falls under a power cap."""
    product_efficiency: dict[NumberType, Share] = {}
    """Share of the peak that large products reach, by type of number."""
    attention_efficiency: dict[FusedKernel, tuple[Share, Share]] = {}
    """Shares of the peak that fused attention reaches in the forward and in the backward pass, by
    generation of its kernels; of a missing one, those of the generation before."""
    bandwidth_efficiency: Share = 0.8
    """Share of the memory bandwidth that element-wise kernels reach."""
    kernel_seconds: NotNegative = 6e-6
    """Fixed time of a kernel on the device."""
    default_node: str = ""
    """The node that `--gpus 8xNAME` uses; if it has another GPU, this one takes its place."""

    def fused_attention(self, generation: int) -> tuple[float, float]:
        """Shares of the peak in forward and backward passes of fused attention."""
        for kernel in reversed(FUSED_KERNELS[:generation]):
            if kernel in self.attention_efficiency:
                return self.attention_efficiency[kernel]
        return DEFAULT_ATTENTION_EFFICIENCY

    def computes(self, number_type: NumberType) -> bool:
        """Whether it has a rate for this type of number."""
        return number_type in self.peak_flops or (
            FALLBACK_TYPES.get(number_type, number_type) in self.peak_flops
        )

    def peak(self, number_type: NumberType) -> float:
        """Peak flops per second in this type of number."""
        if number_type in self.peak_flops:
            return self.peak_flops[number_type]
        return self.peak_flops[FALLBACK_TYPES[number_type]]

    def efficiency(self, number_type: NumberType) -> float:
        """Share of the peak that large products reach."""
        if number_type not in self.product_efficiency:
            number_type = FALLBACK_TYPES.get(number_type, number_type)
        return self.product_efficiency.get(number_type, 0.7)


class LinkModel(LibraryEntry):
    """A type of link, one direction."""

    latency_seconds: NotNegative
    """Of each message in a collective."""
    bandwidth: Positive
    """Data rate of one direction from the data sheet."""
    efficiency: Share = 0.8
    """Share of it that large collectives reach."""

    @property
    def rate(self) -> float:
        """Bytes per second that large transfers reach."""
        return self.bandwidth * self.efficiency


class StorageModel(LibraryEntry):
    """A file system: the bandwidth of all readers together and of one reader."""

    bandwidth: Positive
    reader_bandwidth: Positive
    contention: NotNegative = 0
    """Slowdown of readers with each doubling of their number, as a share: metadata and locks."""


class NodeModel(LibraryEntry):
    """A host with its GPUs and the links between and out of them."""

    gpu: Gpu
    gpus: Count
    gpu_link: LinkModel
    """Between the GPUs of a node."""
    network: LinkModel
    """Between nodes, one adapter."""
    adapters: Count = 1
    """Network adapters that a node can use at once."""
    congestion: Annotated[float, Field(ge=0, le=1)] = 0
    """A collective over k nodes gets the network's rate times k^-congestion."""
    idle_watts: NotNegative
    """Draw of the host, without the GPUs, when idle."""
    busy_watts: NotNegative
    """Draw of the host, without the GPUs, while training."""
    launch_seconds: NotNegative | None = None
    """Host time to launch one pass of one layer, where it was measured; else the framework's."""
    step_seconds: NotNegative = 0
    """Host time of each step that no kernel hides."""
    collective_seconds: NotNegative = 30e-6
    """Fixed time to start one collective."""
    shared_compute: NotNegative = 0
    """Contention: slowdown of kernels with each doubling of the busy workers on a node, as a
    share."""
    shared_update: NotNegative = 0
    """Contention in the optimizer's update, whose memory bandwidth the workers share."""

    def contention_factor(self, share: float, workers: int) -> float:
        """Factor by which `workers`, on as few nodes as possible, slow each other; `share` is
        `shared_compute` or `shared_update`."""
        return 1 + share * log2(min(workers, self.gpus))

    def network_rate(self, nodes: int) -> float:
        """Bytes per second out of a node, over all adapters, in a collective of `nodes` nodes."""
        return float(self.network.rate * self.adapters / nodes**self.congestion)


class Cluster(LibraryEntry):
    """A number of nodes of one type, and their storage."""

    node: NodeModel
    nodes: Count
    storage: StorageModel | None = None
    grams_co2_per_kwh: NotNegative = 480
    """World average of 2023 (Ember, Global Electricity Review 2024): set your grid's own."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Facility energy over the energy of the nodes; 1 leaves cooling out."""

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node.gpus


# Activity of a GPU that communicates or waits in a spinning kernel of a collective: between idle
# (0) and memory-bound kernels (0.75).
COMMUNICATION_ACTIVITY = 0.35
# A GPU at its cap draws a little less than the cap on average (ml-energy/zeus traces).
CAP_USED = 0.97


class CappedGpu(NamedTuple):
    """Clock and draw of a GPU under a power cap."""

    clock: float
    """Relative to the uncapped clock."""
    busy_watts: float
    """Draw while computing."""


def watts(gpu: Gpu, activity: float) -> float:
    """Draw at full clock with `activity` between idle (0) and large products (1)."""
    return gpu.power.idle_watts + (gpu.power.busy_watts - gpu.power.idle_watts) * activity


def check_cap(gpu: Gpu, cap_watts: float | None) -> None:
    """Raises InputError for a cap that the device does not accept."""
    power = gpu.power
    if cap_watts is not None and not power.minimum_watts <= cap_watts <= power.limit_watts:
        raise InputError(
            f"a power cap of {cap_watts:g} W on {gpu.name}",
            f"it takes {power.minimum_watts:g} to {power.limit_watts:g} W",
        )


def unmeasured_cap(gpu: Gpu, cap_watts: float | None) -> str:
    """Why no cap of so many watts should be recommended; empty if its effect was measured."""
    power = gpu.power
    if cap_watts is None or cap_watts >= power.limit_watts:
        return ""
    measured = power.cap_range if power.cap_curve else cap_curve(gpu.architecture).measured
    if measured is None:
        return f"the effect of power caps was not measured on {gpu.name} or its architecture"
    low, high = (share * power.limit_watts for share in measured)
    if low <= cap_watts <= high:
        return ""
    return f"power caps on {gpu.name} were measured between {low:g} and {high:g} W only"


def under_cap(gpu: Gpu, activity: float, cap_watts: float | None) -> CappedGpu:
    """Clock, relative to that at the default limit, and draw while computing with `activity`."""
    idle, limit = gpu.power.idle_watts, gpu.power.limit_watts
    cap = limit if cap_watts is None else cap_watts
    uncapped_watts = watts(gpu, activity)
    if uncapped_watts <= idle:
        return CappedGpu(1.0, uncapped_watts)
    xs, clocks = zip(*(gpu.power.cap_curve or cap_curve(gpu.architecture).points), strict=True)
    headroom = np.array([max(cap - idle, 0.0), limit - idle]) / (uncapped_watts - idle)
    clock, default_clock = np.interp(headroom, xs, clocks)
    return CappedGpu(
        clock=float(max(clock / default_clock, 0.05)),
        busy_watts=max(min(uncapped_watts, CAP_USED * cap), idle),
    )


def wait_watts(gpu: Gpu, cap_watts: float | None) -> float:
    """Draw while communicating or waiting in a collective, at most the cap."""
    return under_cap(gpu, COMMUNICATION_ACTIVITY, cap_watts).busy_watts
