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

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

BYTES_PER_ELEMENT: dict[Precision, int] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,  # 19 bits are used, 32 are moved
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
}


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
    cap_curve: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))
    """Points (cap above idle over the uncapped mean draw above idle, relative clock). A cap binds
    somewhat above the mean draw, because the draw has peaks."""

    @model_validator(mode="after")
    def _in_order(self) -> Power:
        if not self.idle_watts <= self.busy_watts <= self.limit_watts * 1.05:
            raise ValueError("idle_watts ≤ busy_watts ≤ limit_watts is needed")
        xs, ys = zip(*self.cap_curve, strict=True)
        if list(xs) != sorted(xs) or list(ys) != sorted(ys) or ys[-1] != 1.0 or ys[0] < 0:
            raise ValueError("cap_curve must rise to a clock of 1")
        return self


class Gpu(LibraryEntry):
    """A GPU, or a CPU socket that computes like one."""

    kind: Literal["gpu", "cpu"] = "gpu"
    peak_flops: dict[Precision, Positive]
    """Peak flops per second by precision, without sparsity; a missing precision is unsupported."""
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
    product_efficiency: dict[Precision, Share] = {}
    """Share of the peak that large products reach, by precision."""
    bandwidth_efficiency: Share = 0.8
    """Share of the memory bandwidth that element-wise kernels reach."""
    kernel_seconds: NotNegative = 6e-6
    """Fixed time of a kernel on the device."""
    default_node: str = ""
    """The node that `--gpus 8xNAME` uses; if it has another GPU, this one takes its place."""

    def efficiency(self, precision: Precision) -> float:
        """Share of the peak that large products reach."""
        return self.product_efficiency.get(precision, 0.7)


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
    launch_seconds: NotNegative = 1e-4
    """Host time to launch one pass of one layer; shorter kernels wait for the host."""
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


def under_cap(gpu: Gpu, activity: float, cap_watts: float | None) -> CappedGpu:
    """Clock, relative to that at the default limit, and draw while computing with `activity`."""
    idle, limit = gpu.power.idle_watts, gpu.power.limit_watts
    cap = limit if cap_watts is None else cap_watts
    uncapped_watts = watts(gpu, activity)
    if uncapped_watts <= idle:
        return CappedGpu(1.0, uncapped_watts)
    xs, clocks = zip(*gpu.power.cap_curve, strict=True)
    headroom = np.array([max(cap - idle, 0.0), limit - idle]) / (uncapped_watts - idle)
    clock, default_clock = np.interp(headroom, xs, clocks)
    return CappedGpu(
        clock=float(max(clock / default_clock, 0.05)),
        busy_watts=max(min(uncapped_watts, CAP_USED * cap), idle),
    )


def wait_watts(gpu: Gpu, cap_watts: float | None) -> float:
    """Draw while communicating or waiting in a collective, at most the cap."""
    return under_cap(gpu, COMMUNICATION_ACTIVITY, cap_watts).busy_watts
