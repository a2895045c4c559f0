"""Transformers as data: GPT, BERT, Llama, T5, ViT, mixtures of experts, latent attention.

The defaults are those of GPT-2 and BERT. `transformer_costs` has the layers that follow from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from carme.simulator.hardware import SimulatorModel
from carme.simulator.layers import Size

AttentionKernel = Literal["unfused", "flash-1", "flash-2", "flash-3"]
PositionEncoding = Literal["learned", "rotary", "alibi", "sinusoidal", "none"]


class OutputHead(SimulatorModel):
    """A dense layer after the last block, with its loss."""

    outputs: Size
    positions: Size | None = None
    """Tokens of each sample that it is applied to; all if unset."""
    tied: bool = False
    """Its weights are those of the embedding."""
    transform: bool = False
    """A dense layer of the hidden width, an activation and a norm come first (BERT)."""


class Experts(SimulatorModel):
    """A mixture of experts in the place of the feed-forward layer."""

    count: Size
    active: Size
    """Experts that each token is sent to."""
    width: Size
    """Inner width of one expert."""
    shared_width: Annotated[int, Field(ge=0)] = 0
    """Inner width of the experts that every token passes, together."""
    layers: Size | None = None
    """Blocks with experts, the last ones; all if unset."""

    @model_validator(mode="after")
    def _enough(self) -> Experts:
        if self.active > self.count:
            raise ValueError(f"{self.active} active of {self.count} experts")
        return self


class LatentAttention(SimulatorModel):
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values by way of low ranks."""

    query_rank: Annotated[int, Field(ge=0)] = 0
    """0: queries are projected directly."""
    key_value_rank: Size
    plain_width: Size
    """Width of a head's queries and keys without position."""
    position_width: Size
    """Width of their rotary part; that of the keys is shared by all heads."""
    value_width: Size


class EncoderStack(SimulatorModel):
    """The encoder of an encoder-decoder model; its blocks have the decoder's sizes."""

    layers: Size
    sequence: Size


class Patches(SimulatorModel):
    """Images cut in patches, which a dense layer embeds (ViT)."""

    size: Size
    """Edge of a patch in pixels."""
    channels: Size = 3


class Transformer(SimulatorModel):
    """A transformer by its sizes. The defaults are those of GPT-2 and BERT.

    The tensor-parallel split of a layer follows Megatron-LM (Narayanan et al. 2021): heads and
    feed-forward columns are divided.
    """

    hidden: Size
    layers: Size
    heads: Size
    sequence: Size
    """Tokens of a sample; of the decoder if there is an encoder."""
    vocabulary: Annotated[int, Field(ge=0, le=10**9)]
    feed_forward: Size | None = None
    """Width of the inner layer; 4 x hidden if unset."""
    positions: Annotated[int, Field(ge=0)] | None = None
    """Entries of the learned position table; the sequence length if unset."""
    position_encoding: PositionEncoding = "learned"
    key_value_heads: Size | None = None
    """Grouped queries share keys and values; 1 is multi-query attention. `heads` if unset."""
    head_width: Size | None = None
    """hidden / heads if unset."""
    attention: AttentionKernel = "unfused"
    """`flash-…`: one kernel that never stores the scores, by generation; 3 stands for kernels made
    for the GPU's own architecture, such as cuDNN's."""
    causal: bool = True
    """A token attends to those before it; fused attention leaves the other half out."""
    window: Size | None = None
    """Sliding window: a token attends to so many before it."""
    window_layers: Size | None = None
    """Blocks with the sliding window; all if unset."""
    gated: bool = False
    """The inner layer is the product of two projections (SwiGLU, GeGLU)."""
    norm: Literal["layer", "rms"] = "layer"
    biases: bool = True
    dropout: bool = True
    tied: bool = True
    """The vocabulary head has the embedding's weights."""
    outputs: tuple[OutputHead, ...] | None = None
    """Output heads; one over the vocabulary if unset."""
    fused_loss: bool = False
    """One kernel computes the loss of a head; otherwise several do, in fp32."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    encoder: EncoderStack | None = None
    patches: Patches | None = None
    extra_prediction_layers: Annotated[int, Field(ge=0, le=100)] = 0
    """Blocks that predict further tokens, each with a vocabulary head (DeepSeek-V3)."""

    @model_validator(mode="after")
    def _consistent(self) -> Transformer:
        if self.head_width is None and self.latent is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}); or set"
                " head_width"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of key_value_heads ({self.groups})"
            )
        if not self.vocabulary and not self.patches:
            raise ValueError("vocabulary must be at least 1; only `patches` need none")
        for name, blocks in (
            ("window_layers", self.window_layers),
            ("experts", self.expert_blocks),
        ):
            if blocks is not None and blocks > self.layers:
                raise ValueError(f"{name} has {blocks} of {self.layers} layers")
        return self

    @property
    def width(self) -> int:
        """Of one head."""
        return self.head_width or self.hidden // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def key_value_width(self) -> int:
        """Keys and values of a token, over all heads that have their own."""
        if latent := self.latent:
            widths = latent.plain_width + latent.position_width + latent.value_width
            return self.heads * widths
        return 2 * self.groups * self.width

    @property
    def inner(self) -> int:
        """Width of the dense feed-forward layer."""
        return self.feed_forward or 4 * self.hidden

    @property
    def expert_blocks(self) -> int:
        """Blocks with experts."""
        return (self.experts.layers or self.layers) if self.experts else 0

    @property
    def blocks(self) -> int:
        """All blocks, those of the encoder included."""
        encoder = self.encoder.layers if self.encoder else 0
        return encoder + self.layers + self.extra_prediction_layers

    @property
    def heads_after(self) -> tuple[OutputHead, ...]:
        """The output heads."""
        if self.outputs is not None:
            return self.outputs
        return (OutputHead(outputs=self.vocabulary, tied=self.tied),) if self.vocabulary else ()
