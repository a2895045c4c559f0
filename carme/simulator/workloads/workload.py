"""Workloads as values: a network given by layers, by a transformer's sizes or by measured steps,
and the data it learns from."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme.simulator.hardware.cluster import (
    Count,
    Described,
    NotNegative,
    Positive,
    Precision,
)
from carme.simulator.workloads.layers import Cost, Layer, Size
from carme.simulator.workloads.transformer import Transformer

Floats = NDArray[np.float64]
Optimizer = Literal["sgd", "momentum", "rmsprop", "adam", "lamb"]

OPTIMIZER_STATES: dict[Optimizer, int] = {
    "sgd": 0,
    "momentum": 1,
    "rmsprop": 1,
    "adam": 2,
    "lamb": 2,
}
"""fp32 values kept a parameter, beside the parameter itself."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class Loader(_Part):
    """A way to get the data into memory."""

    bytes_per_second: Positive
    """What one reader parses, storage apart."""
    note: str = ""


class Dataset(_Part):
    """What is learned from, and how it is read."""

    name: str = ""
    samples: Count | Annotated[int, Field(ge=1, le=10**13)]
    sample_bytes: NotNegative = 0
    """On storage."""
    input_elements: NotNegative = 0
    """Of one sample in GPU memory."""
    format: str = ""
    loaders: dict[str, Loader] = {}
    """By method; the first is the default. None means that reading is not what limits."""
    at_start: bool = False
    """The whole set is read before the first step (CANDLE), instead of while training."""
    files: int = 1


class MeasuredStep(_Part):
    """Seconds that a step took: compute only, on one GPU."""

    gpu: str
    batch: Count
    seconds: Positive


class Convergence(_Part):
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


class Arrays(NamedTuple):
    """All layers as columns, for NumPy; the fields of `Cost`."""

    names: tuple[str, ...]
    rows: Floats
    columns: Floats
    depth: Floats
    groups: Floats
    parameters: Floats
    inputs: Floats
    outputs: Floats
    kept: Floats
    repeat: Floats
    kernels: Floats
    launches: Floats

    @classmethod
    def of(cls, costs: tuple[Cost, ...]) -> Arrays:
        """Costs turned from rows to columns."""
        names, *columns = zip(*costs, strict=True)
        return cls(tuple(names), *(np.array(column, dtype=float) for column in columns))


class Workload(Described):
    """One thing to train."""

    layers: tuple[Layer, ...] = ()
    transformer: Transformer | None = None
    measured: tuple[MeasuredStep, ...] = ()
    parameters: Annotated[float, Field(ge=0)] | None = None
    """Only with measured steps: what is to be averaged or reduced."""
    dataset: Dataset
    batch: Size = 32
    """The usual batch: of one GPU where the recipe scales with the GPUs, else global."""
    epochs: Positive = 1
    optimizer: Optimizer = "momentum"
    precision: Precision = "fp32"
    convergence: Convergence | None = None
    step_overhead_seconds: NotNegative = 0
    """Host time a step beside the kernels, where it was measured."""
    unknown_operators: tuple[str, ...] = ()
    """Operators of an ONNX file that were estimated from their tensors."""

    @model_validator(mode="after")
    def _one_description(self) -> Workload:
        given = [bool(self.layers), self.transformer is not None, bool(self.measured)]
        if sum(given) != 1:
            raise ValueError("give exactly one of layers, transformer and measured")
        if self.measured and self.parameters is None:
            raise ValueError("measured steps need `parameters`, the number that is communicated")
        if not self.measured and self.parameters is not None:
            raise ValueError("`parameters` follow from the layers; remove it")
        return self

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What each layer costs on one sample; empty with measured steps."""
        if self.transformer:
            return self.transformer.costs()
        return tuple(layer.cost() for layer in self.layers)

    @cached_property
    def arrays(self) -> Arrays:
        """The same, column by column."""
        return Arrays.of(self.costs)

    @cached_property
    def sequence(self) -> NDArray[np.intp]:
        """Rows of `arrays` in the order they run: neighbours that repeat equally are a block."""
        repeat = self.arrays.repeat.astype(int)
        edges = [0, *(np.flatnonzero(np.diff(repeat)) + 1), len(repeat)]
        blocks = [np.tile(np.arange(a, b), repeat[a]) for a, b in pairwise(edges)]
        return np.concatenate(blocks)

    @cached_property
    def parameter_count(self) -> float:
        """Trainable parameters."""
        if self.parameters is not None:
            return float(self.parameters)
        return float(self.arrays.parameters @ self.arrays.repeat)

    @cached_property
    def forward_flops(self) -> float:
        """Floating-point operations of one sample's forward pass (a multiply-add counts two)."""
        if not self.costs:
            return 0.0
        a = self.arrays
        return float(np.sum(2 * a.rows * a.columns * a.depth * a.groups * a.repeat * a.kernels))
