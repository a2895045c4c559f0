"""Layers and transformers as data, and their cost: matrix products, elements moved, parameters,
activations.

Every layer is one matrix product (rows x depth times depth x columns; `rows` grows with the
batch) or none, and the elements that it reads and writes. Time, energy and memory follow from it.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from carme.simulator.hardware import SimulatorModel

Size = Annotated[int, Field(ge=1, le=10**12)]


class LayerCost(NamedTuple):
    """Forward work of one layer on one sample; the backward pass does it twice."""

    name: str
    rows: float = 0.0
    """Rows, columns and depth of the matrix product; 0 where there is none."""
    columns: float = 0.0
    depth: float = 0.0
    groups: float = 0.0
    """Independent products of this shape in one sample."""
    parameters: float = 0.0
    inputs: float = 0.0
    """Elements read, without the parameters."""
    outputs: float = 0.0
    """Elements written."""
    activations: float = 0.0
    """Elements stored for the backward pass."""
    repeat: int = 1
    """Layers of this shape, one after the other."""
    kernels: int = 1
    """Kernels that run one after the other, such as the time steps of a recurrence."""
    launches: int = 1
    """Launches of each kernel."""

    @property
    def forward_flops(self) -> float:
        """Of all repeats; a multiply-add counts as two."""
        product = 2 * self.rows * self.columns * self.depth * self.groups
        return product * self.repeat * self.kernels


class _Layer(SimulatorModel):
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

    def cost(self) -> LayerCost:
        positions = prod(self.output)
        window = self.channels // self.groups * prod(self.kernel)
        inputs = self.channels * positions * self.stride ** len(self.output)
        return LayerCost(
            name=self.name or f"convolution {self.channels}→{self.filters}",
            rows=positions,
            columns=self.filters / self.groups,
            depth=window,
            groups=self.groups,
            parameters=window * self.filters + self.filters,
            inputs=inputs,
            outputs=self.filters * positions,
            activations=inputs,
            repeat=self.repeat,
        )


class Dense(_Layer):
    """A fully connected layer, applied to `positions` (tokens, time steps) of each sample."""

    kind: Literal["dense"]
    inputs: Size
    outputs: Size
    positions: Size = 1
    shared: bool = False
    """Its weights are counted in another layer (tied embeddings)."""

    def cost(self) -> LayerCost:
        return LayerCost(
            name=self.name or f"dense {self.inputs}→{self.outputs}",
            rows=self.positions,
            columns=self.outputs,
            depth=self.inputs,
            groups=1,
            parameters=0 if self.shared else self.inputs * self.outputs + self.outputs,
            inputs=self.inputs * self.positions,
            outputs=self.outputs * self.positions,
            activations=self.inputs * self.positions,
            repeat=self.repeat,
        )


class Lstm(_Layer):
    """A layer of LSTM cells: one product for each time step, in sequence."""

    kind: Literal["lstm"]
    inputs: Size
    hidden: Size
    steps: Size
    directions: Literal[1, 2] = 1

    def cost(self) -> LayerCost:
        weights = 4 * self.hidden * (self.inputs + self.hidden)
        return LayerCost(
            name=self.name or f"lstm {self.inputs}→{self.hidden}",
            rows=1,
            columns=4 * self.hidden,
            depth=self.inputs + self.hidden,
            groups=1,
            parameters=self.directions * (weights + 8 * self.hidden),
            inputs=self.inputs + self.hidden,
            outputs=8 * self.hidden,
            activations=8 * self.hidden * self.steps * self.directions,
            repeat=self.repeat,
            kernels=self.steps * self.directions,
        )


class Embedding(_Layer):
    """A table of which each sample reads `lookups` rows."""

    kind: Literal["embedding"]
    entries: Size
    width: Size
    lookups: Size = 1

    def cost(self) -> LayerCost:
        elements = self.width * self.lookups
        return LayerCost(
            name=self.name or f"embedding {self.entries}x{self.width}",
            parameters=self.entries * self.width,
            inputs=elements,
            outputs=elements,
            repeat=self.repeat,
        )


class Elementwise(_Layer):
    """A layer that only moves elements: activation, pooling, normalisation, addition."""

    kind: Literal["elementwise"]
    elements: Size
    outputs: Size | None = None
    parameters: Annotated[int, Field(ge=0)] = 0
    passes: Size = 1
    """How often the elements are read and written: 2 for normalisation over them."""
    in_place: bool = False
    """It stores no activations for the backward pass beyond those of its neighbours."""

    def cost(self) -> LayerCost:
        return LayerCost(
            name=self.name or "elementwise",
            parameters=self.parameters,
            inputs=self.elements * self.passes,
            outputs=(self.outputs or self.elements) * self.passes,
            activations=0 if self.in_place else self.elements,
            repeat=self.repeat,
        )


class Attention(_Layer):
    """Scores and context of multi-head attention (projections are dense layers of their own)."""

    kind: Literal["attention"]
    heads: Size
    width: Size
    """Of one head."""
    sequence: Size

    def cost(self) -> LayerCost:
        scores = self.heads * self.sequence * self.sequence
        values = self.heads * self.sequence * self.width
        return LayerCost(
            name=self.name or f"attention {self.heads} heads",
            rows=self.sequence,
            columns=self.sequence,
            depth=self.width,
            groups=self.heads,
            # Over both kernels: q, k and v are read, and the scores by softmax, dropout and
            # context; softmax, dropout and the first product write the scores.
            inputs=(3 * values + 3 * scores) / 2,
            outputs=(values + 3 * scores) / 2,
            # Korthikanti et al. 2022, eq. 2: 5as²b bytes at 2 bytes each, plus q, k and v
            activations=3 * values + 2.5 * scores,
            repeat=self.repeat,
            kernels=2,  # scores, then context: the same number of flops
            launches=2,  # the product, and softmax or dropout
        )


class Product(_Layer):
    """`count` products of two activations, without weights."""

    kind: Literal["product"]
    rows: Size
    columns: Size
    depth: Size
    count: Size = 1

    def cost(self) -> LayerCost:
        operands = (self.rows * self.depth + self.depth * self.columns) * self.count
        return LayerCost(
            name=self.name or f"product {self.rows}x{self.depth}x{self.columns}",
            rows=self.rows,
            columns=self.columns,
            depth=self.depth,
            groups=self.count,
            inputs=operands,
            outputs=self.rows * self.columns * self.count,
            activations=operands,
            repeat=self.repeat,
        )


Layer = Annotated[
    Convolution | Dense | Lstm | Embedding | Elementwise | Attention | Product,
    Field(discriminator="kind"),
]


class Transformer(SimulatorModel):
    """GPT (decoder) and BERT (encoder) alike: the same sizes give the same costs.

    The tensor-parallel split of a layer follows Megatron-LM (Narayanan et al. 2021): heads and
    feed-forward columns are divided.
    """

    hidden: Size
    layers: Size
    heads: Size
    sequence: Size
    vocabulary: Size
    feed_forward: Size | None = None
    """Width of the inner layer; 4 x hidden if unset."""
    positions: Annotated[int, Field(ge=0)] | None = None
    """Entries of the learned position table; the sequence length if unset."""

    @model_validator(mode="after")
    def _divides(self) -> Transformer:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self

    def costs(self, tensor: int = 1) -> tuple[LayerCost, ...]:
        """Embedding, one block `layers` times, norm, output and loss; on one of `tensor` GPUs."""
        h, s, repeat = self.hidden, self.sequence, self.layers
        inner = self.feed_forward or 4 * h

        def dense(name: str, inputs: int, outputs: int) -> LayerCost:
            shape = {"inputs": inputs, "outputs": outputs, "positions": s}
            return Dense(kind="dense", name=name, **shape, repeat=repeat).cost()

        def elementwise(name: str, elements: int, **fields: int) -> LayerCost:
            return Elementwise(kind="elementwise", name=name, elements=elements, **fields).cost()

        positions = s if self.positions is None else self.positions
        embedding = Embedding(
            kind="embedding",
            name="embedding",
            entries=self.vocabulary + positions,
            width=h,
            lookups=s,
        ).cost()
        norm = elementwise("norm", s * h, parameters=2 * h, passes=2, repeat=repeat)
        # What attention and feed-forward add to the stream: dropout, then the sum.
        add = elementwise("add", 2 * s * h, outputs=s * h, repeat=repeat)
        attention = Attention(
            kind="attention",
            name="attention",
            heads=max(self.heads // tensor, 1),
            width=h // self.heads,
            sequence=s,
            repeat=repeat,
        )
        # The output's weights are those of the embedding.
        columns = max(self.vocabulary // tensor, 1)
        output = Dense(
            kind="dense", name="output", inputs=h, outputs=columns, positions=s, shared=True
        )
        return (
            embedding._replace(parameters=embedding.parameters / tensor),
            norm,
            dense("query-key-value", h, 3 * h // tensor),
            attention.cost(),
            dense("projection", h // tensor, h),
            add,
            norm,
            dense("feed-forward in", h, inner // tensor),
            elementwise("gelu", s * inner // tensor, repeat=repeat),
            dense("feed-forward out", inner // tensor, h),
            add,
            elementwise("norm", s * h, parameters=2 * h),
            output.cost(),
            elementwise("loss", max(s * self.vocabulary // tensor, 1), passes=2),
        )
