"""The layers of a transformer, as one GPU gets them when they are divided.

Tensor parallelism divides heads and inner columns; sequence parallelism also divides what lies
between them; context parallelism divides the tokens; expert parallelism divides the experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from carme.simulator.hardware import FUSED_KERNELS
from carme.simulator.layers import LayerCost, attention_cost
from carme.simulator.transformer import Experts, LatentAttention, OutputHead, Transformer

Rows = list[LayerCost]
LOSS_PASSES = 7
"""How often an unfused loss reads and writes its logits: six kernels, in fp32; fitted with the
iteration times of GPT models on 2 to 8 A100 (VIA-Research/vTrain)."""


class Split(NamedTuple):
    """Among how many GPUs a block is divided, and how."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False

    @property
    def stream(self) -> int:
        """GPUs that divide norms, additions and the input of each block."""
        return self.tensor if self.sequence_parallel else 1


WHOLE = Split()


def transformer_costs(spec: Transformer, split: Split = WHOLE) -> tuple[LayerCost, ...]:
    """Embedding, blocks and heads. Rows of one block have the same `block` and `repeat`."""
    return tuple(
        row._replace(block=number, repeat=repeat)
        for number, (repeat, rows) in enumerate(_blocks(spec, split))
        for row in rows
    )


def _blocks(spec: Transformer, split: Split) -> Iterator[tuple[int, Rows]]:
    """Each kind of block with how many of it run one after the other."""
    tokens = spec.sequence / split.context
    yield 1, _embedding(spec, split)
    if spec.encoder:
        yield spec.encoder.layers, _block(spec, split, spec.encoder.sequence, causal=False)
    if dense_blocks := spec.layers - spec.expert_blocks:
        yield dense_blocks, _block(spec, split, spec.sequence, spec.causal)
    if spec.expert_blocks:
        yield spec.expert_blocks, _block(spec, split, spec.sequence, spec.causal, spec.experts)
    if spec.extra_prediction_layers:
        block = _block(spec, split, spec.sequence, spec.causal, spec.experts)
        merge = _dense(spec, "merge", tokens, 2 * spec.hidden, spec.hidden)
        head = OutputHead(outputs=max(spec.vocabulary, 1), tied=True)
        yield spec.extra_prediction_layers, [merge, *block, *_head(spec, split, head)]
    heads = [row for head in spec.heads_after for row in _head(spec, split, head)]
    yield 1, [_norm(spec, split, tokens), *heads]


def _dense(
    spec: Transformer,
    name: str,
    tokens: float,
    inputs: float,
    outputs: float,
    stored: float | None = None,
) -> LayerCost:
    """`stored` are the elements kept for the backward pass; the whole input if unset."""
    return LayerCost(
        name=name,
        rows=tokens,
        columns=outputs,
        depth=inputs,
        groups=1,
        parameters=inputs * outputs + (outputs if spec.biases else 0),
        inputs=inputs * tokens,
        outputs=outputs * tokens,
        activations=inputs * tokens if stored is None else stored,
    )


def _elementwise(name: str, reads: float, writes: float, stored: float = 0.0) -> LayerCost:
    return LayerCost(name=name, inputs=reads, outputs=writes, activations=stored)


def _norm(spec: Transformer, split: Split, tokens: float) -> LayerCost:
    elements = tokens * spec.hidden / split.stream
    parameters = spec.hidden * (2 if spec.norm == "layer" else 1)
    # Read for the mean and for the result; written with the statistics of the backward pass.
    return _elementwise("norm", 2 * elements, 2 * elements, elements)._replace(
        parameters=parameters, passes=2
    )


def _add(spec: Transformer, split: Split, tokens: float) -> LayerCost:
    """What attention and feed-forward add to the stream: dropout, then the sum."""
    elements = tokens * spec.hidden / split.stream
    mask = elements / 2 if spec.dropout else 0.0  # a byte for each element
    return _elementwise("add", 2 * elements, elements, mask)


def _embedding(spec: Transformer, split: Split) -> Rows:
    tokens = spec.sequence / split.context
    if spec.patches:
        pixels = spec.patches.channels * spec.patches.size**2
        rows = [_dense(spec, "patches", tokens, pixels, spec.hidden)]
        table = 1.0  # the class token
    else:
        rows, table = [], spec.vocabulary / split.tensor
    if spec.position_encoding == "learned":
        table += spec.sequence if spec.positions is None else spec.positions
    if spec.encoder:
        tokens += spec.encoder.sequence / split.context
    moved = tokens * spec.hidden
    lookup = _elementwise("embedding", moved, moved)._replace(parameters=table * spec.hidden)
    return [*rows, lookup]


def _block(
    spec: Transformer, split: Split, sequence: float, causal: bool, experts: Experts | None = None
) -> Rows:
    """One block on `sequence` tokens; with cross-attention if it belongs to a decoder."""
    tokens = sequence / split.context
    norm, add = _norm(spec, split, tokens), _add(spec, split, tokens)
    attention = (
        _latent_attention(spec, spec.latent, split, sequence, causal)
        if spec.latent
        else _attention(spec, split, sequence, sequence, causal)
    )
    rows = [norm, *attention, add]
    if spec.encoder and causal:
        rows += [norm, *_attention(spec, split, sequence, spec.encoder.sequence, False), add]
    feed_forward = (
        _expert_feed_forward(spec, experts, split, tokens)
        if experts
        else _feed_forward(spec, split, tokens, spec.inner)
    )
    return [*rows, norm, *feed_forward, add]


def _generation(spec: Transformer) -> int:
    """Of fused attention; 0 if it is unfused."""
    return 0 if spec.attention == "unfused" else FUSED_KERNELS.index(spec.attention) + 1


def _density(spec: Transformer, attention: LayerCost, windowed: LayerCost) -> float:
    """Mean over the blocks with and without a sliding window."""
    share = (spec.window_layers or spec.layers) / spec.layers
    return share * windowed.density + (1 - share) * attention.density


def _core(
    spec: Transformer, name: str, heads: float, groups: float, width: float, value_width: float,
    queries: float, keys: float, causal: bool, context: int,
) -> LayerCost:  # fmt: skip
    def core(window: int | None) -> LayerCost:
        return attention_cost(
            name, heads, groups, width, value_width, queries, keys,
            fused=_generation(spec), causal=causal, window=window, dropout=spec.dropout,
            stored_keys=keys / context,
        )  # fmt: skip

    whole = core(None)
    if spec.window is None or not causal:
        return whole
    return whole._replace(density=_density(spec, whole, core(spec.window)))


def _attention(spec: Transformer, split: Split, sequence: float, keys: float, causal: bool) -> Rows:
    tokens, h, t = sequence / split.context, spec.hidden, split.tensor
    heads, groups = max(spec.heads / t, 1), max(spec.groups / t, 1)
    query, key_value = heads * spec.width, 2 * groups * spec.width
    stored = tokens * h / split.stream
    if keys == sequence:
        inputs = [_dense(spec, "query-key-value", tokens, h, query + key_value, stored)]
    else:
        encoded = keys / split.context
        inputs = [
            _dense(spec, "cross query", tokens, h, query, stored),
            _dense(spec, "cross key-value", encoded, h, key_value, 0.0),
        ]
    if spec.position_encoding == "rotary":
        turned = tokens * (query + key_value / 2)
        inputs.append(_elementwise("rotary", turned, turned))
    core = _core(
        spec, "attention", heads, groups, spec.width, spec.width, tokens, keys, causal,
        split.context,
    )  # fmt: skip
    projection = _dense(spec, "projection", tokens, query, h)
    return [*inputs, core, projection]


def _latent_attention(
    spec: Transformer, latent: LatentAttention, split: Split, sequence: float, causal: bool
) -> Rows:
    tokens, h = sequence / split.context, spec.hidden
    heads = max(spec.heads / split.tensor, 1)
    width = latent.plain_width + latent.position_width
    compressed = latent.key_value_rank + latent.position_width
    stored = tokens * h / split.stream
    if latent.query_rank:
        queries = [
            _dense(spec, "query down", tokens, h, latent.query_rank, stored),
            _dense(spec, "query up", tokens, latent.query_rank, heads * width),
        ]
    else:
        queries = [_dense(spec, "query", tokens, h, heads * width, stored)]
    up = heads * (latent.plain_width + latent.value_width)
    turned = tokens * (heads + 1) * latent.position_width
    core = _core(
        spec, "latent attention", heads, heads, width, latent.value_width, tokens, sequence, causal,
        split.context,
    )  # fmt: skip
    return [
        *queries,
        _dense(spec, "key-value down", tokens, h, compressed, 0.0),
        _dense(spec, "key-value up", tokens, latent.key_value_rank, up),
        _elementwise("rotary", turned, turned),
        core,
        _dense(spec, "projection", tokens, heads * latent.value_width, h),
    ]


def _feed_forward(
    spec: Transformer, split: Split, tokens: float, width: float, name: str = "feed-forward"
) -> Rows:
    inner, gates = width / split.tensor, 2 if spec.gated else 1
    stored = tokens * spec.hidden / split.stream
    return [
        _dense(spec, f"{name} in", tokens, spec.hidden, gates * inner, stored),
        _elementwise("activation", gates * tokens * inner, tokens * inner, gates * tokens * inner),
        _dense(spec, f"{name} out", tokens, inner, spec.hidden),
    ]


def _expert_feed_forward(spec: Transformer, experts: Experts, split: Split, tokens: float) -> Rows:
    """Each GPU sends its tokens to the experts' GPUs and gets as many from others. Without expert
    parallelism, tensor-parallel GPUs divide each expert as they divide other layers."""
    h, local = spec.hidden, experts.count / split.expert
    senders = split.tensor if split.expert > 1 else 1
    routed = tokens * experts.active / senders
    width = experts.width * senders / split.tensor
    gates = 2 if spec.gated else 1

    def expert(name: str, inputs: float, outputs: float) -> LayerCost:
        row = _dense(spec, name, routed, inputs, outputs)
        launches = max(round(local), 1)  # one for each expert's product
        return row._replace(parameters=row.parameters * local, experts=local, launches=launches)

    inner = routed * width
    # Tokens are sorted for the exchange, and again for the experts that receive them.
    moved = routed * h * (2 if split.expert > 1 else 1)
    rows = [
        _dense(spec, "router", tokens / split.tensor, h, experts.count, 0.0)._replace(
            parameters=h * experts.count, activation_type=True
        ),
        _elementwise("dispatch", moved, moved),
        expert("expert in", h, gates * width),
        _elementwise("activation", gates * inner, inner, gates * inner),
        expert("expert out", width, h),
        _elementwise("combine", moved, moved - routed * h + tokens * h / senders),
    ]
    if experts.shared_width:
        rows += _feed_forward(spec, split, tokens, experts.shared_width, "shared expert")
    return rows


def _head(spec: Transformer, split: Split, head: OutputHead) -> Rows:
    tokens = min(head.positions or spec.sequence, spec.sequence) / split.context
    columns = max(head.outputs / split.tensor, 1)
    rows = []
    if head.transform:
        elements = tokens * spec.hidden
        rows = [
            _dense(spec, "transform", tokens, spec.hidden, spec.hidden),
            _elementwise("activation", elements, elements, elements),
            _norm(spec, split, tokens),
        ]
    output = _dense(spec, "output", tokens, spec.hidden, columns, tokens * spec.hidden)
    # A tied head has no weights of its own; its bias counts for nothing.
    parameters = 0.0 if head.tied else spec.hidden * columns
    logits = tokens * columns
    # One kernel reads and writes them; otherwise several do, in fp32: conversion, maximum,
    # difference, exponential, sum and quotient.
    passes = 1 if spec.fused_loss else LOSS_PASSES
    return [
        *rows,
        output._replace(parameters=parameters, activation_type=True),
        # An unfused loss also stores the probabilities, in fp32.
        _elementwise(
            "loss", passes * logits, passes * logits, logits * (1 if spec.fused_loss else 3)
        )._replace(passes=passes),
    ]
