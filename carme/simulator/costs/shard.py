"""The shard of a workload that one GPU gets under a synchronous plan: layers, samples and kernel
times. Step time and memory are computed from it.

Layers are grouped in units that no plan cuts: blocks of a transformer, single layers of others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.errors import InputError
from carme.simulator.costs.collectives import placed_node
from carme.simulator.costs.kernels import kernel_work, layer_times
from carme.simulator.frameworks import FRAMEWORKS
from carme.simulator.hardware import CappedGpu, Cluster, NodeModel, under_cap
from carme.simulator.plans import Synchronous, require
from carme.simulator.precision import PRECISIONS, PrecisionRecipe
from carme.simulator.transformer_costs import Split, transformer_costs
from carme.simulator.workload import Floats, LayerArrays, Optimizer, Workload

Indices = NDArray[np.intp]


class Shard(NamedTuple):
    """One GPU's part of a workload. Times are of one unit and one micro-batch."""

    workload: Workload
    cluster: Cluster
    node: NodeModel
    """A node with as many GPUs as the plan uses of it."""
    plan: Synchronous
    recipe: PrecisionRecipe
    optimizer: Optimizer
    arrays: LayerArrays
    """The layers, divided by tensor, context and expert parallelism."""
    unit_of_row: Indices
    order: Indices
    """The units in the order they run."""
    virtual_stage: Indices
    """Of each entry of `order`."""
    counts: Floats
    """counts[v, u]: how often virtual stage v runs unit u."""
    row_forward_seconds: Floats
    """Kernel seconds of each row of `arrays`."""
    forward_seconds: Floats
    """Kernel seconds of each unit."""
    backward_seconds: Floats
    """Of each unit: gradients of inputs and weights, and recomputation."""
    parameters: Floats
    """Of each unit, experts included."""
    expert_parameters: Floats
    capped_gpu: CappedGpu
    memory_busy_share: float
    """Share of the kernels' time in which memory is read or written."""
    global_batch: int
    micro_batch: int
    micro_batches: int

    @property
    def stage_counts(self) -> Floats:
        """counts[s, u]: how often each stage runs unit u, over its chunks."""
        plan = self.plan
        if plan.interleave == 1:
            return self.counts
        chunks = self.counts.reshape(plan.interleave, plan.pipeline, -1)
        return np.asarray(chunks.sum(axis=0))

    def divided_parameters(self, stage: int) -> float:
        """Parameters that each GPU of a stage keeps if data-parallel copies divide them. Experts
        have fewer copies than the rest, so their shards are larger."""
        plan, units = self.plan, self.stage_counts[stage]
        experts = float(units @ self.expert_parameters)
        expert_shards = max(min(plan.shards, plan.replicas * plan.tensor // plan.expert), 1)
        dense = float(units @ self.parameters) - experts
        return dense / plan.shards + experts / expert_shards

    def by_unit(self, rows: Floats) -> Floats:
        """Sums of a column of `arrays` over the rows of each unit."""
        return unit_sums(rows, self.unit_of_row)

    @property
    def is_block(self) -> Floats:
        """1 for the units that recomputation covers: transformer blocks, and all other layers."""
        blocks = np.ones(len(self.parameters))
        if self.workload.transformer:
            blocks[[0, -1]] = 0.0
        return blocks


def unit_sums(rows: Floats, unit_of_row: Indices) -> Floats:
    """Sums over the rows of each unit."""
    return np.asarray(np.bincount(unit_of_row, weights=rows), dtype=float)


def shard_workload(workload: Workload, cluster: Cluster, plan: Synchronous) -> Shard:
    """The shard of one GPU. Raises InputError if the workload cannot be divided by this plan."""
    precision, gpu = plan.precision or workload.precision, cluster.node.gpu
    recipe = PRECISIONS[precision]
    for number_type in (recipe.compute, recipe.activations):
        require(
            gpu.computes(number_type),
            f"{gpu.name} has no {number_type}",
            f"it has {', '.join(gpu.peak_flops)}; set the precision",
        )
    local_batch, global_batch = batch_sizes(workload, plan)
    micro_batch = plan.micro_batch or (local_batch if plan.pipeline == 1 else 1)
    micro_batch = min(micro_batch, local_batch)
    arrays = _divided(workload, plan)
    launch = FRAMEWORKS[plan.framework or workload.framework]
    host_seconds = cluster.node.launch_seconds
    if host_seconds is None:
        host_seconds = launch.host_seconds
    work = kernel_work(
        arrays, micro_batch, gpu, precision, launch.device_share, launch.elementwise_share
    )
    if plan.adapters:
        frozen = arrays.parameters > 0
        work = work._replace(weight_gradient=np.where(frozen, 0.0, work.weight_gradient))
    times = layer_times(work, gpu, host_seconds)
    capped_gpu = under_cap(gpu, times.activity, plan.power_cap_watts)
    if capped_gpu.clock != 1:
        times = layer_times(work, gpu, host_seconds, capped_gpu.clock)
    node = placed_node(cluster.node, plan)
    contention = node.contention_factor(node.shared_compute, plan.gpus)
    row_forward = times.forward_seconds / arrays.repeat * contention
    row_backward = times.backward_seconds / arrays.repeat * contention
    if workload.transformer:
        unit_of_row = arrays.block.astype(np.intp)
        first_rows = np.searchsorted(unit_of_row, np.arange(unit_of_row[-1] + 1))
        units = np.arange(unit_of_row[-1] + 1)
        order = np.repeat(units, arrays.repeat[first_rows].astype(np.intp))
    else:
        unit_of_row, order = np.arange(len(row_forward)), workload.sequence
    forward_seconds = unit_sums(row_forward, unit_of_row)
    backward_seconds = unit_sums(row_backward, unit_of_row)
    virtual_stage = _virtual_stages(workload, plan, order, forward_seconds + backward_seconds)
    virtual, units_count = plan.pipeline * plan.interleave, len(forward_seconds)
    cells = np.bincount(virtual_stage * units_count + order, minlength=virtual * units_count)
    shard = Shard(
        workload=workload,
        cluster=cluster,
        node=node,
        plan=plan,
        recipe=recipe._replace(
            gradients=plan.gradient_type or recipe.gradients,
            states=plan.state_type or recipe.states,
        ),
        optimizer=plan.optimizer or workload.optimizer,
        arrays=arrays,
        unit_of_row=unit_of_row,
        order=order,
        virtual_stage=virtual_stage,
        counts=cells.reshape(virtual, units_count).astype(float),
        row_forward_seconds=row_forward,
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
        parameters=unit_sums(arrays.parameters, unit_of_row),
        expert_parameters=unit_sums(arrays.parameters * (arrays.experts > 0), unit_of_row),
        capped_gpu=capped_gpu,
        memory_busy_share=times.memory_busy_share,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=-(-local_batch // micro_batch),
    )
    if plan.recompute == "none":
        return shard
    if plan.recompute == "selective":
        again = unit_sums(row_forward * arrays.selective, unit_of_row)
    else:
        again = forward_seconds * shard.is_block * recomputed_share(shard)
    return shard._replace(backward_seconds=backward_seconds + again)


def recomputed_share(shard: Shard) -> float:
    """Share of the blocks of a GPU that `recompute = "full"` computes again."""
    if shard.plan.recompute != "full":
        return 0.0
    if shard.plan.recompute_layers is None:
        return 1.0
    blocks = float((shard.stage_counts @ shard.is_block).max())
    return min(shard.plan.recompute_layers / blocks, 1.0)


def batch_sizes(workload: Workload, plan: Synchronous) -> tuple[int, int]:
    """Local and global batch: samples of a step on one data-parallel copy and on all."""
    scaled = plan.scaled_batch(workload.batch, plan.data_parallel)
    if plan.data == "whole":
        return scaled, scaled * plan.data_parallel
    require(
        scaled >= plan.data_parallel,
        f"a global batch of {scaled} over {plan.data_parallel} copies of the model",
        f"give at least {plan.data_parallel}, or let it grow with the GPUs (batch rule linear)",
    )
    return -(-scaled // plan.data_parallel), scaled


def _divided(workload: Workload, plan: Synchronous) -> LayerArrays:
    """The layers after tensor, context and expert parallelism."""
    split = Split(plan.tensor, plan.context, plan.expert, plan.sequence_parallel)
    if split[:3] == (1, 1, 1):
        return workload.arrays
    transformer = workload.transformer
    if transformer is None:
        raise InputError(
            f"tensor, context or expert parallelism of {workload.name}",
            "only transformers can be cut that way",
        )
    require(
        transformer.heads % plan.tensor == 0,
        f"{transformer.heads} attention heads over {plan.tensor} GPUs",
        f"use a divisor of {transformer.heads}",
    )
    if plan.expert > 1:
        require(
            transformer.experts is not None,
            f"expert parallelism of {workload.name}",
            "it has no experts; use expert = 1",
        )
        experts = transformer.experts.count if transformer.experts else 1
        require(
            experts % plan.expert == 0,
            f"{experts} experts over {plan.expert} GPUs",
            f"use a divisor of {experts}",
        )
    return LayerArrays.of(transformer_costs(transformer, split))


def _virtual_stages(
    workload: Workload, plan: Synchronous, order: Indices, seconds: Floats
) -> Indices:
    """The virtual stage of each unit in `order`: contiguous ones of about equal time, of a
    transformer as many blocks in each."""
    virtual = plan.pipeline * plan.interleave
    if virtual == 1:
        return np.zeros(len(order), dtype=np.intp)
    transformer = workload.transformer
    # Embedding and loss may take the place of a block where that makes the stages equal.
    layers = transformer.blocks if transformer else len(order)
    are_units_equal = bool(transformer and layers % virtual and not len(order) % virtual)
    require(
        virtual <= layers or are_units_equal,
        f"a {plan.pipeline}-way pipeline of {layers} layers"
        + (f" with {plan.interleave} parts each" if plan.interleave > 1 else ""),
        f"use at most {layers} stages",
    )
    if are_units_equal:
        return np.repeat(np.arange(virtual), len(order) // virtual)
    if transformer:
        # The first stage also embeds, the last computes the loss. Blocks that are left over go to
        # neighbours in the middle, which are on different GPUs.
        each, left = divmod(layers, virtual)
        sizes = np.full(virtual, each)
        sizes[(virtual - left) // 2 :][:left] += 1
        return np.pad(np.repeat(np.arange(virtual), sizes), 1, mode="edge")
    elapsed = np.cumsum(seconds[order])
    edges = np.searchsorted(elapsed / elapsed[-1] * virtual, np.arange(1, virtual))
    # Every stage gets at least one layer, whatever the times.
    edges = np.maximum(edges, np.arange(1, virtual))
    edges = np.minimum(edges, layers - np.arange(virtual - 1, 0, -1))
    return np.searchsorted(edges, np.arange(layers), side="right")
