"""Workloads: a network, described by layers, by a transformer's sizes or by measured steps, and its
data set."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from carme.errors import InputError
from carme.simulator.frameworks import Framework
from carme.simulator.hardware import (
    Count,
    LibraryEntry,
    NotNegative,
    Positive,
    SimulatorModel,
)
from carme.simulator.layers import Layer, LayerCost, Size
from carme.simulator.precision import Precision
from carme.simulator.transformer import Transformer
from carme.simulator.transformer_costs import transformer_costs

Floats = NDArray[np.float64]
Optimizer = Literal["sgd", "momentum", "rmsprop", "adam", "lamb"]

MAX_WARNINGS = 20
OPTIMIZER_STATES: dict[Optimizer, int] = {
    "sgd": 0,
    "momentum": 1,
    "rmsprop": 1,
    "adam": 2,
    "lamb": 2,
}
"""fp32 values of optimizer state for each parameter, without the parameter itself."""


class DataLoader(SimulatorModel):
    """A method of reading the data set into memory."""

    bytes_per_second: Positive
    """What one reader process parses, if storage does not limit it."""
    note: str = ""


class Dataset(SimulatorModel):
    """The training data, and how they are read."""

    name: str = ""
    samples: Count | Annotated[int, Field(ge=1, le=10**13)]
    sample_bytes: NotNegative = 0
    """On storage."""
    input_elements: NotNegative = 0
    """Of one sample in GPU memory."""
    format: str = ""
    loaders: dict[str, DataLoader] = Field(default_factory=dict)
    """By name of the method; the first is the default. Without any, parsing takes no time."""
    at_start: bool = False
    """The whole set is read before the first step (CANDLE), instead of while training."""
    files: int = 1


class MeasuredBatchTime(SimulatorModel):
    """Measured compute seconds of one step on one GPU."""

    gpu: str
    batch: Count
    seconds: Positive


class Convergence(SimulatorModel):
    """Epochs to the target as a function of the batch: epochs x (1 + batch / critical batch).

    From McCandlish et al. 2018, An Empirical Model of Large-Batch Training: far below the critical
    batch a larger one is free in samples; far above, it only costs.
    """

    epochs: Positive
    critical_batch: Positive
    target: str = ""

    def epochs_for(self, batch: float) -> float:
        """Epochs to the target with this global batch."""
        return self.epochs * (1 + batch / self.critical_batch)


class LayerArrays(NamedTuple):
    """All layers as columns, for NumPy; the fields are those of `LayerCost`."""

    names: tuple[str, ...]
    rows: Floats
    columns: Floats
    depth: Floats
    groups: Floats
    parameters: Floats
    inputs: Floats
    outputs: Floats
    passes: Floats
    activations: Floats
    repeat: Floats
    kernels: Floats
    launches: Floats
    experts: Floats
    density: Floats
    backward_products: Floats
    fused: Floats
    activation_type: Floats
    selective: Floats
    block: Floats
    window: Floats
    stride: Floats
    dilated: Floats

    @classmethod
    def of(cls, costs: tuple[LayerCost, ...]) -> LayerArrays:
        """The costs, turned from rows to columns."""
        columns = np.array([cost[1:] for cost in costs], dtype=float).T.copy()
        return cls(tuple(cost.name for cost in costs), *columns)


class Workload(LibraryEntry):
    """A model to train, its data set and its usual training parameters."""

    layers: tuple[Layer, ...] = ()
    transformer: Transformer | None = None
    measured: tuple[MeasuredBatchTime, ...] = ()
    parameters: Annotated[float, Field(ge=0)] | None = None
    """Only with measured steps: the number of parameters that workers communicate."""
    dataset: Dataset
    batch: Size = 32
    """The usual batch: of one GPU where the recipe scales with the GPUs, else global."""
    epochs: Positive = 1
    optimizer: Optimizer = "momentum"
    precision: Precision = "fp32"
    framework: Framework = "pytorch"
    """What launches its kernels."""
    convergence: Convergence | None = None
    step_overhead_seconds: NotNegative = 0
    """Host time of each step that no kernel hides, where it was measured."""
    unknown_operators: tuple[str, ...] = ()
    """Operators of an ONNX file whose cost is estimated from their tensors."""
    warnings: Annotated[
        tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=MAX_WARNINGS)
    ] = ()
    """What the description leaves out or assumes, with its share, where it comes from a file."""

    @model_validator(mode="after")
    def _one_description(self) -> Workload:
        descriptions = [bool(self.layers), self.transformer is not None, bool(self.measured)]
        if sum(descriptions) != 1:
            raise ValueError("give exactly one of layers, transformer and measured")
        if self.measured and self.parameters is None:
            raise ValueError("measured steps need `parameters`, the number that is communicated")
        if not self.measured and self.parameters is not None:
            raise ValueError("`parameters` follow from the layers; remove it")
        return self

    @cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """Forward cost of each layer on one sample; empty with measured steps."""
        if self.transformer:
            return transformer_costs(self.transformer)
        return tuple(layer.cost() for layer in self.layers)

    @cached_property
    def arrays(self) -> LayerArrays:
        """The costs, column by column."""
        return LayerArrays.of(self.costs)

    @cached_property
    def sequence(self) -> NDArray[np.intp]:
        """Rows of `arrays` in the order they run; neighbours with the same repeat form a block."""
        repeat = self.arrays.repeat.astype(int)
        edges = [0, *(np.flatnonzero(np.diff(repeat)) + 1), len(repeat)]
        blocks = [np.tile(np.arange(a, b), repeat[a]) for a, b in pairwise(edges)]
        return np.concatenate(blocks)

    @cached_property
    def parameter_count(self) -> float:
        """Number of trainable parameters."""
        if self.parameters is not None:
            return float(self.parameters)
        return float(self.arrays.parameters @ self.arrays.repeat)

    @cached_property
    def forward_flops(self) -> float:
        """Flops of one sample's forward pass; a multiply-add counts as two."""
        return float(sum(cost.forward_flops for cost in self.costs))

    def measured_seconds(self, gpu: str, batch: float) -> float:
        """Compute seconds of a batch on this GPU: interpolated between the measured batches, and
        beyond them on a fitted line. Raises InputError if the GPU was not measured."""
        points = sorted((m.batch, m.seconds) for m in self.measured if m.gpu == gpu)
        if not points:
            gpus = ", ".join(sorted({m.gpu for m in self.measured}))
            raise InputError(f"{self.name} was not measured on {gpu}", f"it was on {gpus}")
        batches, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        if len(points) == 1:
            return float(seconds[0] * batch / batches[0])
        if batches[0] <= batch <= batches[-1]:
            return float(np.interp(batch, batches, seconds))
        slope, intercept = np.polyfit(batches, seconds, 1)
        # The line may cross zero below the smallest batch, but a smaller batch never takes more
        # time per sample than that.
        min_seconds = seconds.min() * min(batch / batches[0], 1.0)
        return float(max(intercept + slope * batch, min_seconds))
