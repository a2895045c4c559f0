"""Memory that a plan needs on one GPU, by use, and why it does not fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.simulator.costs.shard import Shard, recomputed_share
from carme.simulator.hardware import Cluster
from carme.simulator.plans import BasePlan
from carme.simulator.precision import BYTES_PER_ELEMENT, PRECISIONS, PrecisionRecipe
from carme.simulator.workload import OPTIMIZER_STATES, Floats, Optimizer, Workload
from carme.units import format_bytes

# CUDA context, kernels and libraries of a framework. An assumption, not a data-sheet figure:
# frameworks take between 0.5 and 1.5 GB.
FRAMEWORK_BYTES = 1.0e9
COMMUNICATOR_BYTES = 1.0e9
"""Buffers of NCCL and buckets of the framework, for each kind of parallelism."""
FRAGMENTATION = 0.1
"""Share of what comes and goes in a step that the allocator holds beside it. Both are fitted to
peaks of GPT on A100 (BigScience, 47 runs); the 161 runs of llm-foundry fit with them."""
GATHERED_UNITS = 2
"""Blocks of sharded weights on a GPU at a time: the one that computes and the next."""

REMEDIES = {
    "weights": "shard the weights, or use tensor or pipeline parallelism",
    "gradients": "shard the gradients, or use tensor or pipeline parallelism",
    "optimizer": "shard the optimizer, or use tensor or pipeline parallelism",
    "activations": "use a smaller micro-batch, recomputation or more GPUs",
    "buffers": "use a smaller micro-batch, or tensor parallelism",
    "data": "use a smaller batch",
    "framework": "use a GPU with more memory",
}


class Memory(NamedTuple):
    """Bytes on the GPU that needs the most, by use."""

    weights: float
    gradients: float
    optimizer: float
    """States and master weights."""
    activations: float
    data: float
    framework: float
    buffers: float
    """Gathered weights and their gradients, and the largest gradient of activations."""
    fragmentation: float
    capacity: float

    @property
    def total(self) -> float:
        return sum(self[:-1])

    @property
    def fits(self) -> bool:
        """An allocator gives back what it only holds before it fails."""
        return self.total - self.fragmentation <= self.capacity

    def why_not(self) -> str:
        """One sentence: bytes needed, bytes available, the largest use and a remedy."""
        uses = {name: getattr(self, name) for name in REMEDIES}
        largest = max(uses, key=lambda name: uses[name])
        needed = format_bytes(self.total - self.fragmentation)
        available = format_bytes(self.capacity)
        most = f"{largest} ({format_bytes(uses[largest])})"
        return f"needs {needed} of {available} a GPU; most is {most}: {REMEDIES[largest]}"

    def parts(self) -> dict[str, float]:
        """Bytes by use."""
        return {name: getattr(self, name) for name in self._fields[:-1]}


class ParameterBytes(NamedTuple):
    """Bytes of one parameter by use."""

    weights: float
    gradients: float
    optimizer: float


def model_bytes(workload: Workload, plan: BasePlan) -> float:
    """Bytes of the weights that copies send each other."""
    recipe = PRECISIONS[plan.precision or workload.precision]
    return workload.parameter_count * BYTES_PER_ELEMENT[recipe.weights]


def bytes_per_parameter(recipe: PrecisionRecipe, optimizer: Optimizer) -> ParameterBytes:
    """Bytes of one parameter's weight, gradient and optimizer state; master weights belong to the
    state, copies in the compute type to the weights."""
    master = BYTES_PER_ELEMENT[recipe.master] if recipe.master else 0.0
    copy = BYTES_PER_ELEMENT[recipe.working_copy] if recipe.working_copy else 0.0
    states = OPTIMIZER_STATES[optimizer] * BYTES_PER_ELEMENT[recipe.states]
    return ParameterBytes(
        weights=BYTES_PER_ELEMENT[recipe.weights] + copy,
        gradients=BYTES_PER_ELEMENT[recipe.gradients],
        optimizer=states + master,
    )


def shard_memory(shard: Shard) -> Memory:
    """Memory of the GPU that needs the most: of the first stage, which has the most micro-batches
    in flight, or of the last, which has the output head."""
    stages = {0, shard.plan.pipeline - 1}
    return max((_stage_memory(shard, stage) for stage in stages), key=lambda memory: memory.total)


def _stage_memory(shard: Shard, stage: int) -> Memory:
    plan, units = shard.plan, shard.stage_counts[stage]
    each = bytes_per_parameter(shard.recipe, shard.optimizer)
    if plan.adapters:
        each = each._replace(gradients=0.0, optimizer=0.0)
    parameters = float(units @ shard.parameters)
    sharded, divided = plan.sharded, shard.divided_parameters(stage)
    if sharded == "weights":
        # Copies in the compute type are gathered, block by block.
        weights = divided * BYTES_PER_ELEMENT[shard.recipe.weights]
    else:
        weights = parameters * each.weights
    gradients = (divided if sharded in ("weights", "gradients") else parameters) * each.gradients
    optimizer = (parameters if sharded == "none" else divided) * each.optimizer
    activations = _activation_bytes(shard, stage)
    buffers = _buffer_bytes(shard, stage)
    communicators = sum(
        size > 1 for size in (plan.tensor, plan.pipeline, plan.replicas, plan.expert)
    )
    inputs = (
        2 * shard.micro_batch * shard.workload.dataset.input_elements * 4
    )  # 2: the next one is prefetched
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        data=inputs / plan.context,
        framework=FRAMEWORK_BYTES + communicators * COMMUNICATOR_BYTES,
        buffers=buffers,
        fragmentation=FRAGMENTATION * (activations + buffers + gradients),
        capacity=shard.cluster.node.gpu.memory_bytes,
    )


def _row_bytes(shard: Shard) -> Floats:
    """Bytes that each row stores for the backward pass of one micro-batch."""
    arrays, recipe = shard.arrays, shard.recipe
    wide, narrow = BYTES_PER_ELEMENT[recipe.activations], BYTES_PER_ELEMENT[recipe.compute]
    stored = arrays.activations * shard.micro_batch
    if narrow == wide:
        return stored * wide
    # The inputs of products with weights are stored as they are multiplied.
    is_narrow = (arrays.parameters > 0) & (arrays.depth > 0) & (arrays.activation_type == 0)
    return stored * np.where(is_narrow, narrow, wide)


def _activation_bytes(shard: Shard, stage: int) -> float:
    plan, arrays = shard.plan, shard.arrays
    rows = _row_bytes(shard)
    if plan.recompute == "selective":
        again = rows * arrays.selective
        # Queries, keys and values are stored, the scores are not; those of one block are rebuilt.
        kept = np.minimum(
            again, 3 * arrays.rows * arrays.depth * arrays.groups * shard.micro_batch
            * BYTES_PER_ELEMENT[shard.recipe.activations]
        )  # fmt: skip
        rows = rows - again + kept
        rebuilt = float((again - kept).max())
    else:
        rebuilt = 0.0
    stored = shard.by_unit(rows)
    units = shard.stage_counts[stage]
    share = recomputed_share(shard)
    if share:
        # Of a block only the input is stored; one block at a time is rebuilt.
        is_block = shard.is_block
        inputs = _block_inputs(shard, rows)
        rebuilt = float((stored * is_block).max())
        kept_units = inputs * is_block + stored * (1 - is_block)
        stored = share * kept_units + (1 - share) * stored
    return float(units @ stored) * _in_flight(shard, stage) + rebuilt


def _block_inputs(shard: Shard, rows: Floats) -> Floats:
    """Bytes of the input of each unit: what its first row stores."""
    first = np.searchsorted(shard.unit_of_row, np.arange(len(shard.parameters)))
    return np.asarray(rows[first])


def _in_flight(shard: Shard, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once."""
    plan = shard.plan
    if plan.interleave == 1:
        return min(plan.pipeline - stage, shard.micro_batches)
    # Korthikanti et al. 2022: more chunks wait for their backward pass; in units of all chunks.
    chunks = 2 * (plan.pipeline - stage - 1) + (plan.interleave - 1) * plan.pipeline + 1
    return min(chunks / plan.interleave, shard.micro_batches)


def _buffer_bytes(shard: Shard, stage: int) -> float:
    """Gathered weights with their gradients, and the gradient of the largest activation."""
    plan, recipe = shard.plan, shard.recipe
    runs = shard.stage_counts[stage] > 0
    elements = shard.arrays.outputs / shard.arrays.passes
    largest_output = float((elements * runs[shard.unit_of_row]).max())
    gradient = largest_output * shard.micro_batch * BYTES_PER_ELEMENT[recipe.activations]
    if plan.sharded != "weights":
        return gradient
    parameters = float((shard.parameters * runs).max())
    gathered = min(BYTES_PER_ELEMENT[recipe.weights], BYTES_PER_ELEMENT[recipe.activations])
    reduced = BYTES_PER_ELEMENT[recipe.gradients]
    return gradient + parameters * (GATHERED_UNITS * gathered + reduced)


def measured_memory(workload: Workload, cluster: Cluster, optimizer: Optimizer) -> Memory:
    """Memory without activations, which measured steps do not tell: a lower bound."""
    each = bytes_per_parameter(PRECISIONS["fp32"], optimizer)
    return Memory(
        weights=workload.parameter_count * each.weights,
        gradients=workload.parameter_count * each.gradients,
        optimizer=workload.parameter_count * each.optimizer,
        activations=0.0,
        data=0.0,
        framework=FRAMEWORK_BYTES,
        buffers=0.0,
        fragmentation=0.0,
        capacity=cluster.node.gpu.memory_bytes,
    )
