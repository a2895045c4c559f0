"""Hardware as values: GPUs, links, nodes, storage and the cluster they make.

SI base units throughout: bytes, seconds, bytes a second, operations a second, watts. Each thing
carries the sources of its figures; `carme hardware NAME` prints them.
"""

from __future__ import annotations

from math import log2
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


class Described(BaseModel):
    """Something from a data file: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    name: Name
    title: str = ""
    """What people call it."""
    sources: dict[str, str] = {}
    """Where each figure comes from."""


class Power(BaseModel):
    """How the draw of a device follows what it does, and its clock follows a cap."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    idle_watts: NotNegative
    limit_watts: Positive
    """The default power limit; a cap may be lower, not higher."""
    minimum_watts: NotNegative = 0
    """The lowest cap that the device accepts."""
    busy_watts: Positive
    """Drawn in long dense products, uncapped."""
    memory_share: Share = 0.75
    """Of the draw above idle, how much memory-bound kernels take."""
    cap_curve: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))
    """Points (what the cap leaves above idle over the mean draw wanted, relative clock). A cap
    begins to bind somewhat above the mean draw, because the draw has peaks."""

    @model_validator(mode="after")
    def _in_order(self) -> Power:
        if not self.idle_watts <= self.busy_watts <= self.limit_watts * 1.05:
            raise ValueError("idle_watts ≤ busy_watts ≤ limit_watts is needed")
        xs, ys = zip(*self.cap_curve, strict=True)
        if list(xs) != sorted(xs) or list(ys) != sorted(ys) or ys[-1] != 1.0 or ys[0] < 0:
            raise ValueError("cap_curve must rise to a clock of 1")
        return self


class Gpu(Described):
    """A GPU, or a CPU socket that computes like one."""

    kind: Literal["gpu", "cpu"] = "gpu"
    peak_flops: dict[Precision, Positive]
    """Dense peak by precision, without sparsity; a precision that is missing is not supported."""
    memory_bytes: Positive
    memory_bandwidth: Positive
    units: Count
    """Multiprocessors (cores of a CPU): products are cut in tiles that these work off in waves."""
    tile: Count = 128
    """Edge of these tiles; half tiles are made for narrow products."""
    overlaps_memory: bool = True
    """A kernel's memory traffic goes on while it computes; a single core does one after the
    other."""
    operand_passes: Annotated[float, Field(ge=1, le=10)] = 1
    """How often a product moves its operands: twice where they are packed before."""
    power: Power
    product_efficiency: dict[Precision, Share] = {}
    """Share of the peak that large dense products reach, by precision."""
    bandwidth_efficiency: Share = 0.8
    """Share of the memory bandwidth that element-wise kernels reach."""
    kernel_seconds: NotNegative = 6e-6
    """What a kernel costs on the device beside its work."""
    default_node: str = ""
    """The node that `--gpus 8xNAME` means."""

    def efficiency(self, precision: Precision) -> float:
        """Share of the peak that large dense products reach."""
        return self.product_efficiency.get(precision, 0.7)


class LinkModel(Described):
    """A kind of link, one direction."""

    latency_seconds: NotNegative
    """Per message, as a collective's step sees it."""
    bandwidth: Positive
    """Data rate of one direction from the data sheet."""
    efficiency: Share = 0.8
    """Share of it that large collectives reach."""

    @property
    def rate(self) -> float:
        """Bytes a second that large transfers reach."""
        return self.bandwidth * self.efficiency


class StorageModel(Described):
    """A file system: what all readers get together, and what one reader can get."""

    bandwidth: Positive
    reader_bandwidth: Positive
    contention: NotNegative = 0
    """How much slower every doubling of the readers makes all of them, as a share: metadata
    and locks, beside the bytes."""


class NodeModel(Described):
    """A host with its GPUs and the links between and out of them."""

    gpu: Gpu
    gpus: Count
    gpu_link: LinkModel
    """Between the GPUs of a node."""
    network: LinkModel
    """Between nodes, one adapter."""
    adapters: Count = 1
    """Adapters a node can use at once."""
    congestion: Annotated[float, Field(ge=0, le=1)] = 0
    """Collectives over k nodes get a k^-congestion part of the network's rate."""
    idle_watts: NotNegative
    """What the node draws beside its GPUs when nothing runs."""
    busy_watts: NotNegative
    """What it draws beside its GPUs while training."""
    launch_seconds: NotNegative = 1e-4
    """Host time to launch one pass of one layer; kernels shorter than that wait for the host."""
    step_seconds: NotNegative = 0
    """Host time a step that nothing hides."""
    collective_seconds: NotNegative = 30e-6
    """What starting one collective costs."""
    shared_compute: NotNegative = 0
    """How much slower each doubling of the node's busy workers makes their kernels, as a share."""
    shared_update: NotNegative = 0
    """The same for the optimizer's update, which lives on memory that they share."""

    def crowded(self, share: float, workers: int) -> float:
        """By what factor so many workers, spread over as few nodes as possible, slow each other."""
        return 1 + share * log2(min(workers, self.gpus))

    def network_rate(self, nodes: int) -> float:
        """Bytes a second out of a node in a collective of so many, all adapters together."""
        return float(self.network.rate * self.adapters / nodes**self.congestion)


class Cluster(Described):
    """So many nodes of one kind, and where their data lie."""

    node: NodeModel
    nodes: Count
    storage: StorageModel | None = None
    grams_co2_per_kwh: NotNegative = 480
    """World average of 2023 (Ember, Global Electricity Review 2024): set your grid's own."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Facility energy over node energy; 1 leaves cooling out, and the results say node energy."""

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node.gpus
