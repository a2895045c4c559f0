"""Communication of a shard: inside layers, of sharded weights, and of gradients.

Tensor parallelism sums the stream twice in a block; experts exchange their tokens twice; context
parallelism passes keys and values around. ZeRO's stage 3 (FSDP) gathers the weights of each block
before it runs. Gradients are reduced bucket by bucket during the backward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.simulator.costs.collectives import (
    AllReduceCost,
    CollectiveGroup,
    all_reduce_costs,
    all_reduce_seconds,
    all_to_all_seconds,
    collective_group,
    gather_costs,
    gather_seconds,
    gradient_group,
)
from carme.simulator.costs.shard import Shard, recomputed_share, unit_sums
from carme.simulator.precision import BYTES_PER_ELEMENT
from carme.simulator.workload import Floats


class LayerTraffic(NamedTuple):
    """Seconds of communication inside each unit for one micro-batch, which nothing hides."""

    forward_seconds: Floats
    backward_seconds: Floats


def layer_traffic(shard: Shard) -> LayerTraffic:
    """Communication inside the layers: tensor, context and expert parallelism."""
    transformer, plan, node = shard.workload.transformer, shard.plan, shard.node
    zeros = np.zeros(len(shard.parameters))
    if transformer is None or plan.tensor * plan.context * plan.expert == 1:
        return LayerTraffic(zeros, zeros)
    element_bytes = BYTES_PER_ELEMENT[shard.recipe.activations]
    tokens = shard.micro_batch * transformer.sequence / plan.context
    stream_bytes = tokens * transformer.hidden * element_bytes
    is_block = shard.is_block
    forward, backward = zeros.copy(), zeros.copy()
    # What computes beside the communication of each pass.
    beside = zeros
    if plan.overlap_layers:
        beside = shard.forward_seconds * is_block
    if plan.tensor > 1:
        group = collective_group(plan.tensor, node)
        if plan.sequence_parallel:
            seconds = 2 * gather_seconds(stream_bytes, group, node)
        else:
            seconds = all_reduce_seconds(stream_bytes, group, node, plan.all_reduce)
        # Attention and feed-forward are each followed by a sum; so is a decoder's cross-attention.
        sums = 2 * is_block
        if transformer.encoder:
            sums[2:-1] = 3
        forward += _exposed(seconds * sums, beside, plan.tensor)
        backward += _exposed(seconds * sums, 2 * beside, plan.tensor)
        forward[0] += seconds / (2 if plan.sequence_parallel else 1)  # the divided embedding
        backward[-1] += seconds / (2 if plan.sequence_parallel else 1)  # the divided head
    if plan.context > 1:
        exchange = collective_group(plan.context, node, plan.tensor)
        width = transformer.key_value_width / min(plan.tensor, transformer.groups)
        size = width * shard.micro_batch * transformer.sequence
        seconds = gather_seconds(size * element_bytes, exchange, node)
        is_attention = (shard.arrays.groups > 1).astype(float)
        hidden_by = unit_sums(shard.row_forward_seconds * is_attention, shard.unit_of_row)
        forward += np.maximum(seconds * is_block - hidden_by, 0)
        backward += np.maximum(2 * seconds * is_block - 2 * hidden_by, 0)
    if plan.expert > 1 and transformer.experts:
        routed = tokens * transformer.experts.active / plan.tensor
        group = collective_group(plan.expert, node)
        seconds = all_to_all_seconds(routed * transformer.hidden * element_bytes, group, node)
        exchanges = 2 * seconds * (shard.expert_parameters > 0)
        forward += np.maximum(exchanges - beside, 0)
        backward += np.maximum(exchanges - 2 * beside, 0)
    again = recomputed_share(shard) * is_block * forward
    return LayerTraffic(forward, backward + again)


def _exposed(seconds: Floats, beside: Floats, pieces: int) -> Floats:
    """Of communication in so many pieces, what the computation beside it does not hide; the first
    piece has none beside it."""
    hidden = np.minimum(seconds * (1 - 1 / pieces), beside)
    return np.asarray(seconds - hidden)


def _gathered_bytes(shard: Shard) -> Floats:
    """Bytes of each unit's weights as they are gathered: in the type of the activations."""
    bytes_each = min(
        BYTES_PER_ELEMENT[shard.recipe.weights], BYTES_PER_ELEMENT[shard.recipe.activations]
    )
    return shard.parameters * bytes_each


def _gather_group(shard: Shard) -> CollectiveGroup:
    return collective_group(shard.plan.shards, shard.node, shard.plan.tensor)


def weight_gather_seconds(shard: Shard, forward_seconds: float, backward_seconds: float) -> float:
    """Seconds of a step in which gathers of sharded weights, and reductions of their gradients, are
    not hidden. The seconds given are of a micro-batch on the busiest stage."""
    plan, sharded = shard.plan, shard.plan.sharded
    if sharded == "none" or plan.shards == 1:
        return 0.0
    group = _gather_group(shard)
    runs = shard.stage_counts.max(axis=0)
    sizes = _gathered_bytes(shard)
    costs = gather_costs(group, shard.node)
    if sharded != "weights":
        # After the update each GPU gathers what the others updated, in the next forward pass.
        total = min(cost.seconds(float(sizes @ runs)) for cost in costs)
        return max(total - forward_seconds, 0.0) if plan.prefetch else total
    gathers = np.min([cost.seconds(sizes) for cost in costs], axis=0) * (sizes > 0)
    reduces = reduction_seconds(shard, shard.parameters, costs)
    gather, reduce = float(gathers @ runs), float(reduces @ runs)
    first, last = float(gathers[0]), float(reduces[0])
    if not plan.prefetch:
        exposed = 2 * gather + max(reduce - backward_seconds, 0.0)
        return shard.micro_batches * exposed + last
    forward = max(gather - first - forward_seconds, 0.0)
    backward = max(gather + reduce - last - backward_seconds, 0.0)
    return shard.micro_batches * (forward + backward) + first + last


def reduction_seconds(shard: Shard, parameters: Floats, costs: list[AllReduceCost]) -> Floats:
    """Seconds to reduce the gradients of so many parameters by the fastest of these algorithms; in
    hybrid sharding also between the shard groups."""
    if shard.plan.adapters:
        return np.zeros_like(parameters)
    sizes = parameters * BYTES_PER_ELEMENT[shard.recipe.gradients]
    seconds = np.min([cost.seconds(sizes) for cost in costs], axis=0) * (sizes > 0)
    plan = shard.plan
    if plan.sharded != "none" and plan.shards < plan.replicas:
        between = collective_group(
            plan.replicas // plan.shards, shard.node, plan.tensor * plan.shards
        )
        hybrid = all_reduce_costs(between, shard.node, plan.all_reduce)
        rest = np.min([cost.seconds(sizes / plan.shards) for cost in hybrid], axis=0)
        seconds = seconds + rest * (sizes > 0)
    return np.asarray(seconds)


class GradientBuckets(NamedTuple):
    """Gradient buckets in the order they get ready."""

    ready_seconds: Floats
    """From the start of the step."""
    all_reduce_seconds: Floats
    exposed_seconds: float = 0.0
    """Reductions after earlier micro-batches, as far as the next one does not hide them."""


def gradient_buckets(shard: Shard, end_seconds: float) -> GradientBuckets:
    """Reductions of a step whose last backward kernel ends at `end_seconds`."""
    plan, node = shard.plan, shard.node
    expert_copies = plan.replicas * plan.tensor // plan.expert
    if plan.sharded == "weights" or max(plan.replicas, expert_copies) == 1:
        return GradientBuckets(np.empty(0), np.empty(0))
    group = gradient_group(plan, node)
    costs_of = all_reduce_costs if plan.sharded == "none" else gather_costs
    costs = costs_of(
        _gather_group(shard) if plan.sharded != "none" else group, node, plan.all_reduce
    )
    has_experts = plan.expert > 1 and bool(shard.expert_parameters.any())
    dense = shard.parameters - shard.expert_parameters if has_experts else shard.parameters
    stage = _largest_stage(shard)
    if plan.overlap:
        units = shard.order[shard.virtual_stage % plan.pipeline == stage][::-1]
        # The last micro-batch's backward pass, unit by unit from the end.
        elapsed = np.cumsum(shard.backward_seconds[units])
        gradient_bytes = np.cumsum(dense[units] * BYTES_PER_ELEMENT[shard.recipe.gradients])
        bucket = np.ceil(gradient_bytes / plan.bucket_bytes)
        last_unit = np.append(np.flatnonzero(np.diff(bucket)), len(units) - 1)
        parameters = np.diff(np.cumsum(dense[units])[last_unit], prepend=0.0)
        ready = end_seconds - elapsed[-1] + elapsed[last_unit]
        ready, parameters = ready[parameters > 0], parameters[parameters > 0]
    else:
        parameters = np.array([float(shard.stage_counts[stage] @ dense)])
        ready = np.array([end_seconds])
    seconds = reduction_seconds(shard, parameters, costs)
    if has_experts and expert_copies > 1:
        expert_group = collective_group(expert_copies, node, plan.expert)
        count = float(shard.stage_counts[stage] @ shard.expert_parameters)
        extra = reduction_seconds(
            shard, np.array([count]), costs_of(expert_group, node, plan.all_reduce)
        )
        seconds = seconds + extra[0] / len(seconds)
    earlier = 0.0
    if plan.synchronize == "micro-batch" or plan.sharded == "gradients":
        backward = float((shard.stage_counts @ shard.backward_seconds).max())
        hidden = backward if plan.overlap else 0.0
        earlier = (shard.micro_batches - 1) * max(float(seconds.sum()) - hidden, 0.0)
    return GradientBuckets(ready, seconds, earlier)


def _largest_stage(shard: Shard) -> int:
    """The stage with the most parameters."""
    return int(np.argmax(shard.stage_counts @ shard.parameters))
