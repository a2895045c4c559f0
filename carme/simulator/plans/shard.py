"""What one GPU gets of a workload under a synchronous plan: its layers, its samples, its kernels'
times. Everything a step's parts are computed from, worked out once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.errors import InputError
from carme.simulator.costs.kernels import layer_times
from carme.simulator.hardware.cluster import BYTES_PER_ELEMENT, Cluster, Precision
from carme.simulator.hardware.power import CappedGpu, under_cap
from carme.simulator.plans.plan import BasePlan, Synchronous, require
from carme.simulator.workloads.workload import Arrays, Optimizer, Workload

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


class Shard(NamedTuple):
    """A workload cut for one plan. Per-row times are of one layer and one micro-batch."""

    workload: Workload
    cluster: Cluster
    plan: Synchronous
    precision: Precision
    optimizer: Optimizer
    arrays: Arrays
    """Layers as one of the tensor-parallel GPUs sees them."""
    stages: list[Rows]
    """Rows of `arrays` that each pipeline stage runs, in order."""
    forward: Floats
    backward: Floats
    pace: CappedGpu
    traffic: float
    parameters: float
    """On the GPU that holds the most."""
    global_batch: int
    micro_batch: int
    micro_batches: int

    @property
    def element_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.precision]


def shard(workload: Workload, cluster: Cluster, plan: Synchronous) -> Shard:
    """Cut the workload; refuse what cannot be cut that way."""
    precision = chosen_precision(workload, cluster, plan)
    per_copy, global_batch = batches(workload, plan)
    micro = min(plan.micro_batch or (per_copy if plan.pipeline == 1 else 1), per_copy)
    arrays = _tensor_parallel(workload, plan)
    gpu = cluster.node.gpu
    times = layer_times(arrays, micro, gpu, precision, cluster.node.launch_seconds)
    pace = under_cap(gpu, times.activity, plan.power_cap_watts)
    stretch = times.clocked / pace.clock + 1 - times.clocked
    stretch *= cluster.node.crowded(cluster.node.shared_compute, plan.gpus)
    forward = times.forward / arrays.repeat * stretch
    backward = times.backward / arrays.repeat * stretch
    if plan.recompute == "full":
        backward = backward + forward
    stages = _stages(workload, forward + backward, plan.pipeline)
    return Shard(
        workload,
        cluster,
        plan,
        precision,
        plan.optimizer or workload.optimizer,
        arrays,
        stages,
        forward,
        backward,
        pace,
        times.traffic,
        max(float(arrays.parameters[rows].sum()) for rows in stages),
        global_batch,
        micro,
        -(-per_copy // micro),
    )


def chosen_precision(workload: Workload, cluster: Cluster, plan: BasePlan) -> Precision:
    """The plan's precision or the workload's, if the GPU has it."""
    precision = plan.precision or workload.precision
    gpu = cluster.node.gpu
    require(
        precision in gpu.peak_flops,
        f"{gpu.name} has no {precision}",
        f"it has {', '.join(gpu.peak_flops)}; set the precision",
    )
    return precision


def batches(workload: Workload, plan: Synchronous) -> tuple[int, int]:
    """Samples of one copy and of all copies in a step."""
    scaled = plan.scaled_batch(workload.batch, plan.copies)
    if plan.data == "whole":
        return scaled, scaled * plan.copies
    require(
        scaled >= plan.copies,
        f"a global batch of {scaled} over {plan.copies} copies of the model",
        f"give at least {plan.copies}, or let it grow with the GPUs (batch rule linear)",
    )
    return -(-scaled // plan.copies), scaled


def _tensor_parallel(workload: Workload, plan: Synchronous) -> Arrays:
    if plan.tensor == 1:
        return workload.arrays
    spec = workload.transformer
    if spec is None:
        raise InputError(
            f"tensor parallelism of {workload.name}", "only transformers can be cut that way"
        )
    require(
        spec.heads % plan.tensor == 0,
        f"{spec.heads} attention heads over {plan.tensor} GPUs",
        f"use a divisor of {spec.heads}",
    )
    return Arrays.of(spec.costs(plan.tensor))


def _stages(workload: Workload, seconds: Floats, pipeline: int) -> list[Rows]:
    """Contiguous layers of about equal time; a transformer is cut between blocks."""
    sequence = workload.sequence
    if pipeline == 1:
        return [sequence]
    spec = workload.transformer
    layers = spec.layers if spec else len(sequence)
    require(
        pipeline <= layers,
        f"a {pipeline}-way pipeline of {layers} layers",
        f"use at most {layers} stages",
    )
    if spec:
        # Blocks are dealt out evenly; what comes before and after them goes to the ends.
        block = np.full(len(sequence), layers - 1)
        block[0] = 0
        inner = (len(sequence) - 4) // layers
        block[1:-3] = np.repeat(np.arange(layers), inner)
        stage = block * pipeline // layers
    else:
        spent = np.cumsum(seconds[sequence])
        stage = np.searchsorted(spent / spent[-1] * pipeline, np.arange(1, pipeline))
        # Every stage gets at least one layer, whatever the times.
        stage = np.maximum(stage, np.arange(1, pipeline))
        stage = np.minimum(stage, layers - np.arange(pipeline - 1, 0, -1))
        stage = np.searchsorted(stage, np.arange(layers), side="right")
    return [sequence[stage == s] for s in range(pipeline)]
