"""Memory that a plan needs on one GPU, and why it does not fit."""

from __future__ import annotations

from typing import NamedTuple

from carme.simulator.costs.shard import Shard
from carme.simulator.hardware import BYTES_PER_ELEMENT, Cluster, Precision
from carme.simulator.plans import BasePlan
from carme.simulator.workload import OPTIMIZER_STATES, Floats, Optimizer, Workload
from carme.units import format_bytes

# CUDA context, kernels and the allocator's slack of a framework. An assumption, not a data-sheet
# figure: frameworks take between 0.5 and 1.5 GB.
FRAMEWORK_BYTES = 1.0e9

REMEDIES = {
    "weights": "use tensor or pipeline parallelism",
    "gradients": "use tensor or pipeline parallelism",
    "optimizer": "shard the optimizer, or use tensor or pipeline parallelism",
    "activations": "use a smaller micro-batch, recomputation or more GPUs",
    "data": "use a smaller batch",
    "framework": "use a GPU with more memory",
}


class Memory(NamedTuple):
    """Bytes on the GPU that needs the most, by use."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    data: float
    framework: float
    capacity: float

    @property
    def total(self) -> float:
        return sum(self[:-1])

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity

    def why_not(self) -> str:
        """One sentence: bytes needed, bytes available, the largest use and a remedy."""
        uses = {name: getattr(self, name) for name in self._fields[:-1]}
        largest = max(uses, key=lambda name: uses[name])
        needed, available = format_bytes(self.total), format_bytes(self.capacity)
        most = f"{largest} ({format_bytes(uses[largest])})"
        return f"needs {needed} of {available} a GPU; most is {most}: {REMEDIES[largest]}"


def model_bytes(workload: Workload, plan: BasePlan) -> float:
    """Bytes of the weights, and of the gradients."""
    return workload.parameter_count * BYTES_PER_ELEMENT[plan.precision or workload.precision]


def parameter_bytes(
    parameters: float, precision: Precision, optimizer: Optimizer, shards: int
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer state; below fp32 with fp32 master weights."""
    element_bytes = BYTES_PER_ELEMENT[precision]
    master = 4 if element_bytes < 4 else 0
    state = (OPTIMIZER_STATES[optimizer] * max(element_bytes, 4) + master) / shards
    return parameters * element_bytes, parameters * element_bytes, parameters * state


def shard_memory(shard: Shard) -> Memory:
    """Memory of the first stage's GPU, which has the most micro-batches in flight."""
    plan, arrays = shard.plan, shard.arrays
    shards = plan.data_parallel if plan.shard_optimizer else 1
    weights, gradients, state = parameter_bytes(
        shard.parameters, shard.precision, shard.optimizer, shards
    )
    in_flight = min(plan.pipeline, shard.micro_batches)
    stored = arrays.activations[shard.stages[0]]
    elements = float(stored.sum())
    if plan.recompute == "full":
        # The input of each block is stored, and the activations of one block at a time.
        block = 1
        if shard.workload.transformer:
            stored, block = _blocks(stored, len(arrays.activations))
        elements = float(stored[::block].sum() + stored[:block].sum())
    activations = elements * shard.micro_batch * shard.element_bytes * in_flight
    inputs = (
        2 * shard.micro_batch * shard.workload.dataset.input_elements * 4
    )  # 2: the next one is prefetched
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=state,
        activations=activations,
        data=inputs,
        framework=FRAMEWORK_BYTES,
        capacity=shard.cluster.node.gpu.memory_bytes,
    )


def _blocks(stored: Floats, rows: int) -> tuple[Floats, int]:
    """Activations of the first stage's whole transformer blocks, and the rows of one block.

    `rows` of a transformer are the embedding, one block, and norm, output and loss. The first row
    of a block stores the block's input."""
    block = rows - 4
    return stored[1 : 1 + (len(stored) - 1) // block * block], block


def measured_memory(workload: Workload, cluster: Cluster, optimizer: Optimizer) -> Memory:
    """Memory without activations, which measured steps do not tell: a lower bound."""
    weights, gradients, state = parameter_bytes(workload.parameter_count, "fp32", optimizer, 1)
    capacity = cluster.node.gpu.memory_bytes
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=state,
        activations=0.0,
        data=0.0,
        framework=FRAMEWORK_BYTES,
        capacity=capacity,
    )
