"""A transformer by its sizes, expanded to layers; the parallel split of one layer follows
Megatron-LM (Narayanan et al. 2021): heads and feed-forward columns are divided."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme.simulator.workloads.layers import (
    Attention,
    Dense,
    Elementwise,
    Embedding,
    LayerCost,
    Size,
)


class Transformer(BaseModel):
    """GPT (decoder) and BERT (encoder) alike: the same sizes give the same costs."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

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

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return self.feed_forward or 4 * self.hidden

    def costs(self, tensor: int = 1) -> tuple[LayerCost, ...]:
        """Embedding, one block `layers` times, output; on one of `tensor` GPUs."""
        blocks = self._block_costs(tensor, self.layers)
        return (*self._head_costs(tensor), *blocks, *self._tail_costs(tensor))

    def _head_costs(self, tensor: int) -> tuple[LayerCost, ...]:
        h, s = self.hidden, self.sequence
        positions = s if self.positions is None else self.positions
        embed = Embedding(
            kind="embedding",
            name="embedding",
            entries=self.vocabulary + positions,
            width=h,
            lookups=s,
        )
        cost = embed.cost()
        return (cost._replace(parameters=cost.parameters / tensor),)

    def _block_costs(self, tensor: int, repeat: int) -> tuple[LayerCost, ...]:
        h, s, f = self.hidden, self.sequence, self.inner
        norm = Elementwise(
            kind="elementwise",
            name="norm",
            elements=s * h,
            parameters=2 * h,
            passes=2,
            repeat=repeat,
        ).cost()
        # What attention and feed-forward add to the stream: dropout, then the sum.
        add = Elementwise(
            kind="elementwise", name="add", elements=2 * s * h, outputs=s * h, repeat=repeat
        ).cost()

        def dense(name: str, inputs: int, outputs: int) -> LayerCost:
            layer = Dense(
                kind="dense", name=name, inputs=inputs, outputs=outputs, positions=s, repeat=repeat
            )
            return layer.cost()

        attention = Attention(
            kind="attention",
            name="attention",
            heads=max(self.heads // tensor, 1),
            width=h // self.heads,
            sequence=s,
            repeat=repeat,
        ).cost()
        gelu = Elementwise(
            kind="elementwise", name="gelu", elements=s * f // tensor, repeat=repeat
        ).cost()
        return (
            norm,
            dense("query-key-value", h, 3 * h // tensor),
            attention,
            dense("projection", h // tensor, h),
            add,
            norm,
            dense("feed-forward in", h, f // tensor),
            gelu,
            dense("feed-forward out", f // tensor, h),
            add,
        )

    def _tail_costs(self, tensor: int) -> tuple[LayerCost, ...]:
        """Final norm and the product with the (shared) embedding."""
        h, s = self.hidden, self.sequence
        norm = Elementwise(kind="elementwise", name="norm", elements=s * h, parameters=2 * h)
        output = Dense(
            kind="dense",
            name="output",
            inputs=h,
            outputs=max(self.vocabulary // tensor, 1),
            positions=s,
            shared=True,
        )
        loss = Elementwise(
            kind="elementwise",
            name="loss",
            elements=max(s * self.vocabulary // tensor, 1),
            passes=2,
        )
        return (norm.cost(), output.cost(), loss.cost())
