"""Memory need of one GPU, and the reason when it is too much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.hardware.cluster import BYTES_PER_ELEMENT, Cluster, Precision
from carme.simulator.plans.shard import Shard
from carme.simulator.workloads.workload import OPTIMIZER_STATES, Optimizer, Workload
from carme.units import format_bytes

Floats = NDArray[np.float64]

# CUDA context, kernels and the allocator's slack, as frameworks take them on an idle model.
# An assumption, not a data-sheet figure: between 0.5 and 1.5 GB are seen.
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
    """Bytes on the fullest GPU, by what they are for."""

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
        """One sentence: how much is needed, how much there is, what takes most."""
        parts = {name: getattr(self, name) for name in self._fields[:-1]}
        largest = max(parts, key=lambda name: parts[name])
        needed, there = format_bytes(self.total), format_bytes(self.capacity)
        most = f"{largest} ({format_bytes(parts[largest])})"
        return f"needs {needed} of {there} a GPU; most is {most}: {REMEDIES[largest]}"


def parameter_bytes(
    parameters: float, precision: Precision, optimizer: Optimizer, shards: int
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer state; below fp32 a master copy is kept."""
    size = BYTES_PER_ELEMENT[precision]
    master = 4 if size < 4 else 0
    state = (OPTIMIZER_STATES[optimizer] * max(size, 4) + master) / shards
    return parameters * size, parameters * size, parameters * state


def memory_of(piece: Shard) -> Memory:
    """Bytes on the first stage's GPU, which keeps the most micro-batches at once."""
    plan, arrays = piece.plan, piece.arrays
    shards = plan.copies if plan.shard_optimizer else 1
    weights, gradients, state = parameter_bytes(
        piece.parameters, piece.precision, piece.optimizer, shards
    )
    in_flight = min(plan.pipeline, piece.micro_batches)
    kept = arrays.kept[piece.stages[0]]
    total = float(kept.sum())
    if plan.recompute == "full":
        # Each block's input stays, and one block at a time is built again.
        block = 1
        if piece.workload.transformer:
            kept, block = _blocks(kept, len(arrays.kept))
        total = float(kept[::block].sum() + kept[:block].sum())
    activations = total * piece.micro_batch * piece.element_bytes * in_flight
    inputs = 2 * piece.micro_batch * piece.workload.dataset.input_elements * 4  # two: prefetched
    return Memory(
        weights,
        gradients,
        state,
        activations,
        inputs,
        FRAMEWORK_BYTES,
        piece.cluster.node.gpu.memory_bytes,
    )


def _blocks(kept: Floats, rows: int) -> tuple[Floats, int]:
    """The first stage's whole blocks of a transformer with so many rows, and the rows of one.

    The embedding is before the blocks; norm, output and loss are after them. A block's first row
    keeps the block's input."""
    block = rows - 4
    return kept[1 : 1 + (len(kept) - 1) // block * block], block


def memory_of_measured(workload: Workload, cluster: Cluster, optimizer: Optimizer) -> Memory:
    """What is known without layers: parameters only, a lower bound."""
    weights, gradients, state = parameter_bytes(workload.parameter_count, "fp32", optimizer, 1)
    capacity = cluster.node.gpu.memory_bytes
    return Memory(weights, gradients, state, 0.0, 0.0, FRAMEWORK_BYTES, capacity)
