"""Layers as data, and what each costs: products, bytes and parameters for one sample.

Every layer is one dense product (rows x depth times depth x columns, `rows` growing with the
batch), or none, and the elements it reads and writes. That is enough for time, energy and memory.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1, le=10**12)]


class Cost(NamedTuple):
    """One kernel's worth of forward work on one sample. The backward pass does it twice."""

    name: str
    rows: float
    columns: float
    depth: float
    groups: float
    """How many independent products of this shape a sample has."""
    parameters: float
    inputs: float
    """Elements read, parameters not counted."""
    outputs: float
    kept: float
    """Elements that the backward pass needs again."""
    repeat: int
    kernels: int
    """How often this is done, one after the other: the steps of a recurrence."""
    launches: int = 1
    """Of which each takes so many launches."""


class _Layer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = ""
    repeat: Size = 1


class Convolution(_Layer):
    """A convolution in one, two or three dimensions; kernel and output as lists."""

    kind: Literal["convolution"]
    channels: Size
    filters: Size
    kernel: tuple[Size, ...]
    output: tuple[Size, ...]
    groups: Size = 1
    stride: Size = 1

    def cost(self) -> Cost:
        positions = _product(self.output)
        window = self.channels // self.groups * _product(self.kernel)
        inputs = self.channels * positions * self.stride ** len(self.output)
        return Cost(
            self.name or f"convolution {self.channels}→{self.filters}",
            positions,
            self.filters / self.groups,
            window,
            self.groups,
            window * self.filters + self.filters,
            inputs,
            self.filters * positions,
            inputs,
            self.repeat,
            1,
        )


class Dense(_Layer):
    """A fully connected layer; `positions` times per sample (tokens, time steps)."""

    kind: Literal["dense"]
    inputs: Size
    outputs: Size
    positions: Size = 1
    shared: bool = False
    """Its weights are counted elsewhere (tied embeddings)."""

    def cost(self) -> Cost:
        return Cost(
            self.name or f"dense {self.inputs}→{self.outputs}",
            self.positions,
            self.outputs,
            self.inputs,
            1,
            0 if self.shared else self.inputs * self.outputs + self.outputs,
            self.inputs * self.positions,
            self.outputs * self.positions,
            self.inputs * self.positions,
            self.repeat,
            1,
        )


class Lstm(_Layer):
    """A layer of LSTM cells: one product a time step, which cannot be run ahead."""

    kind: Literal["lstm"]
    inputs: Size
    hidden: Size
    steps: Size
    directions: Literal[1, 2] = 1

    def cost(self) -> Cost:
        weights = 4 * self.hidden * (self.inputs + self.hidden)
        return Cost(
            self.name or f"lstm {self.inputs}→{self.hidden}",
            1,
            4 * self.hidden,
            self.inputs + self.hidden,
            1,
            self.directions * (weights + 8 * self.hidden),
            (self.inputs + self.hidden),
            8 * self.hidden,
            8 * self.hidden * self.steps * self.directions,
            self.repeat,
            self.steps * self.directions,
        )


class Embedding(_Layer):
    """A table that `lookups` rows a sample are read from."""

    kind: Literal["embedding"]
    entries: Size
    width: Size
    lookups: Size = 1

    def cost(self) -> Cost:
        moved = self.width * self.lookups
        return Cost(
            self.name or f"embedding {self.entries}x{self.width}",
            0, 0, 0, 0,
            self.entries * self.width,
            moved, moved, 0,
            self.repeat, 1,
        )  # fmt: skip


class Elementwise(_Layer):
    """Anything that only moves elements: activation, pooling, normalisation, addition."""

    kind: Literal["elementwise"]
    elements: Size
    outputs: Size | None = None
    parameters: Annotated[int, Field(ge=0)] = 0
    passes: Size = 1
    """How often the elements are read and written: 2 for normalisation over them."""
    in_place: bool = False
    """Nothing of it is kept for the backward pass that a neighbour does not keep already."""

    def cost(self) -> Cost:
        outputs = self.outputs or self.elements
        return Cost(
            self.name or "elementwise",
            0, 0, 0, 0,
            self.parameters,
            self.elements * self.passes,
            outputs * self.passes,
            0 if self.in_place else self.elements,
            self.repeat, 1,
        )  # fmt: skip


class Attention(_Layer):
    """Scores and context of multi-head attention (projections are dense layers of their own)."""

    kind: Literal["attention"]
    heads: Size
    width: Size
    """Of one head."""
    sequence: Size

    def cost(self) -> Cost:
        scores = self.heads * self.sequence * self.sequence
        values = self.heads * self.sequence * self.width
        return Cost(
            self.name or f"attention {self.heads} heads",
            self.sequence,
            self.sequence,
            self.width,
            self.heads,
            0,
            # Over both: q, k and v are read, and the scores by softmax, dropout and context;
            # the two and the first product write them.
            (3 * values + 3 * scores) / 2,
            (values + 3 * scores) / 2,
            # Korthikanti et al. 2022, eq. 2: 5as²b bytes at 2 bytes each, plus q, k and v
            3 * values + 2.5 * scores,
            self.repeat,
            2,  # scores, then context: the same count of operations
            2,  # the product, and softmax or dropout
        )


class Product(_Layer):
    """`count` products of two activations, without weights."""

    kind: Literal["product"]
    rows: Size
    columns: Size
    depth: Size
    count: Size = 1

    def cost(self) -> Cost:
        left = self.rows * self.depth * self.count
        right = self.depth * self.columns * self.count
        return Cost(
            self.name or f"product {self.rows}x{self.depth}x{self.columns}",
            self.rows,
            self.columns,
            self.depth,
            self.count,
            0,
            left + right,
            self.rows * self.columns * self.count,
            left + right,
            self.repeat,
            1,
        )


Layer = Annotated[
    Convolution | Dense | Lstm | Embedding | Elementwise | Attention | Product,
    Field(discriminator="kind"),
]


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
