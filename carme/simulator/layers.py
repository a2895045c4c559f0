"""Layers as data, and their cost: matrix products, elements moved, parameters, activations.

Every layer is one matrix product (rows x depth times depth x columns; `rows` grows with the
batch) or none, and the elements that it reads and writes. Time, energy and memory follow from it.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

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
    passes: float = 1.0
    """How often the elements are written, which `outputs` counts."""
    activations: float = 0.0
    """Elements stored for the backward pass."""
    repeat: int = 1
    """Layers of this shape, one after the other."""
    kernels: int = 1
    """Kernels that run one after the other, such as the time steps of a recurrence."""
    launches: int = 1
    """Launches of each kernel."""
    experts: float = 0.0
    """Experts of this shape among which the rows of the whole batch are divided; 0 if none."""
    density: float = 1.0
    """Share of the product that is computed; the rest is masked."""
    backward_products: float = 2.0
    """Flops of the backward pass over those of the forward pass."""
    fused: int = 0
    """Generation of the fused attention that computes the product; 0 if none does."""
    activation_type: bool = False
    """The product computes in the type of the activations, not in a narrower one."""
    selective: bool = False
    """Selective recomputation computes its activations again instead of storing them."""
    block: int = 0
    """Number of the transformer block whose row this is; 0 in other networks."""
    window: float = 0.0
    """Positions of a convolution's kernel in two dimensions or more, 1 in one; 0: none."""
    stride: float = 1.0
    """Of a convolution."""
    dilated: bool = False
    """A convolution with gaps in its window, which libraries compute without tensor cores."""

    @property
    def forward_flops(self) -> float:
        """Of all repeats; a multiply-add counts as two."""
        product = 2 * self.rows * self.columns * self.depth * self.groups * self.density
        return product * self.repeat * self.kernels


class _Layer(SimulatorModel):
    name: str = ""
    repeat: Size = 1
    parameters: Annotated[int, Field(ge=0)] | None = None
    """Trainable parameters, if not those of the shape: without bias, or shared with a layer."""

    def _parameters(self, of_shape: int) -> int:
        return of_shape if self.parameters is None else self.parameters


class Convolution(_Layer):
    """A convolution in one, two or three dimensions; kernel and output as lists."""

    kind: Literal["convolution"]
    channels: Size
    filters: Size
    kernel: tuple[Size, ...]
    output: tuple[Size, ...]
    groups: Size = 1
    stride: Size = 1
    dilated: bool = False

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
            parameters=self._parameters(window * self.filters + self.filters),
            inputs=inputs,
            outputs=self.filters * positions,
            activations=inputs,
            repeat=self.repeat,
            # Libraries compute a convolution in one dimension as the product that it is.
            window=prod(self.kernel) if len(self.kernel) > 1 else 1.0,
            stride=self.stride,
            dilated=self.dilated,
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
            parameters=self._parameters(
                0 if self.shared else self.inputs * self.outputs + self.outputs
            ),
            inputs=self.inputs * self.positions,
            outputs=self.outputs * self.positions,
            activations=self.inputs * self.positions,
            repeat=self.repeat,
        )


class Lstm(_Layer):
    """A layer of recurrent cells: one product for each time step, in sequence."""

    kind: Literal["lstm"]
    inputs: Size
    hidden: Size
    steps: Size
    directions: Literal[1, 2] = 1
    gates: Literal[1, 3, 4] = 4
    """4 in an LSTM, 3 in a GRU, 1 in a plain recurrence."""

    def cost(self) -> LayerCost:
        gates = self.gates * self.hidden
        weights = gates * (self.inputs + self.hidden)
        return LayerCost(
            name=self.name or f"lstm {self.inputs}→{self.hidden}",
            rows=1,
            columns=gates,
            depth=self.inputs + self.hidden,
            groups=1,
            parameters=self._parameters(self.directions * (weights + 2 * gates)),
            inputs=self.inputs + self.hidden,
            outputs=2 * gates,
            activations=2 * gates * self.steps * self.directions,
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
            parameters=self._parameters(self.entries * self.width),
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
            passes=self.passes,
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
    fused: bool = False
    """One kernel that never stores the scores (FlashAttention 2)."""
    causal: bool = False
    """Only fused attention leaves out the masked half."""

    def cost(self) -> LayerCost:
        name = self.name or f"attention {self.heads} heads"
        return attention_cost(
            name, self.heads, self.heads, self.width, self.width, self.sequence, self.sequence,
            fused=2 if self.fused else 0, causal=self.causal,
        )._replace(repeat=self.repeat, parameters=self._parameters(0))  # fmt: skip


FUSED_TILE = 128
"""Queries that fused attention computes at a time; a tile on the diagonal is computed in full."""


def attention_cost(
    name: str,
    heads: float,
    key_value_heads: float,
    width: float,
    value_width: float,
    queries: float,
    keys: float,
    *,
    fused: int,
    causal: bool = False,
    window: float | None = None,
    dropout: bool = True,
    stored_keys: float | None = None,
) -> LayerCost:
    """Scores and context: each of `queries` tokens attends to `keys` tokens, to those of the last
    `window` if it is set. Of the keys `stored_keys` are kept for the backward pass, or all."""
    depth = (width + value_width) / 2
    values = queries * heads * depth
    read = queries * heads * width + keys * key_value_heads * (width + value_width)
    written = queries * heads * value_width
    own_keys = keys if stored_keys is None else stored_keys
    kept = queries * heads * width + own_keys * key_value_heads * (width + value_width)
    if fused:
        # Causal: a token attends to half of the keys, in whole tiles.
        density = (1 + min(FUSED_TILE / keys, 1)) / 2 if causal else 1.0
        if window is not None:
            density = min(density, (window + FUSED_TILE) / keys)
        return LayerCost(
            name=name, rows=queries, columns=keys, depth=depth, groups=heads,
            inputs=read / 2, outputs=written / 2,
            activations=kept + 2 * queries * heads,  # and the fp32 logarithm of each sum
            kernels=2, density=density, fused=fused, activation_type=True,
            backward_products=2.5,  # the scores are computed again
        )  # fmt: skip
    scores = heads * queries * keys
    return LayerCost(
        name=name, rows=queries, columns=keys, depth=depth, groups=heads,
        # Over both kernels: q, k and v are read, and the scores by softmax, dropout and context;
        # softmax, dropout and the first product write the scores.
        inputs=(read + 3 * scores) / 2,
        outputs=(values + 3 * scores) / 2,
        # Korthikanti et al. 2022, eq. 2: 5as²b bytes at 2 bytes each, plus q, k and v
        activations=kept + (2.5 if dropout else 1.0) * scores,
        kernels=2,  # scores, then context: the same number of flops
        launches=2,  # the product, and softmax or dropout
        activation_type=True, selective=True,
    )  # fmt: skip


class Product(_Layer):
    """`count` products of two activations; of activations and weights if it has parameters."""

    kind: Literal["product"]
    rows: Size
    columns: Size
    depth: Size
    count: Size = 1

    def cost(self) -> LayerCost:
        operands = self.rows * self.depth * self.count
        if self.parameters is None:
            operands += self.depth * self.columns * self.count
        return LayerCost(
            name=self.name or f"product {self.rows}x{self.depth}x{self.columns}",
            rows=self.rows,
            columns=self.columns,
            depth=self.depth,
            groups=self.count,
            parameters=self._parameters(0),
            inputs=operands,
            outputs=self.rows * self.columns * self.count,
            activations=operands,
            repeat=self.repeat,
        )


Layer = Annotated[
    Convolution | Dense | Lstm | Embedding | Elementwise | Attention | Product,
    Field(discriminator="kind"),
]
