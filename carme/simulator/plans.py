"""Plans: how a workload is distributed over GPUs. One class for each way to synchronise copies, and
the schedules of pipelines and of averaging."""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from carme.errors import InputError
from carme.simulator.hardware import Count, NotNegative, Positive, Precision, Share, SimulatorModel
from carme.simulator.workload import Floats, Optimizer, Workload

Ints = NDArray[np.int64]
AllReduce = Literal["auto", "ring", "tree", "hierarchical"]
BatchRule = Literal["constant", "linear", "square-root", "cube-root"]
BATCH_EXPONENT: dict[BatchRule, float] = {
    "constant": 0.0,
    "linear": 1.0,
    "square-root": 1 / 2,
    "cube-root": 1 / 3,
}
MAX_SLOTS = 20_000
"""Slots of a pipeline computed one by one, in some 0.01 s; longer steps are extrapolated."""
CHUNK = 2_000_000
"""Numbers drawn at a time: 16 MB, so that memory does not grow with the run."""


class BasePlan(SimulatorModel):
    """Fields that all plans have."""

    gpus: Count = 1
    batch: Count | None = None
    """The batch to which `batch_rule` is applied; the workload's usual one if unset."""
    batch_rule: BatchRule = "constant"
    """How the batch grows with the data-parallel copies: int(batch x copies^(0, 1, 1/2, 1/3))."""
    data: Literal["sharded", "whole"] = "sharded"
    """`whole`: every GPU trains on the whole set, and the epochs are divided instead (CANDLE)."""
    scaling: Literal["strong", "weak"] = "strong"
    """`weak`: each GPU does the work of a single-GPU run, so the work grows with the GPUs."""
    epochs: Positive | None = None
    """The workload's own number if unset."""
    to_target: bool = False
    """Take the epochs from the workload's convergence curve, which grows with the batch."""
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    power_cap_watts: Positive | None = None
    node_share: Share | None = None
    """Share of each node that the job holds, the largest of its shares of GPUs, processors and
    memory: it is charged this share of the host's idle energy. The share of the GPUs if unset."""
    loader: str | None = None
    """Name of one of the data set's loading methods; its first if unset."""
    loaders_per_gpu: Count = 6
    """Reader processes that parse while training: about the cores that a node has for each GPU."""
    load_skew: NotNegative = 0
    """When the set is read at the start: how far the last reader is behind the first, as a share of
    the time that one reader takes alone. The first broadcast waits for it."""
    startup_seconds: NotNegative = 0
    """Fixed time before the data are read (containers, imports, CUDA)."""
    broadcast: bool = True
    """The first worker's weights are sent to all before the first step."""
    jitter: Annotated[float, Field(ge=0, le=3)] = 0
    """Coefficient of variation of a worker's compute time from step to step (log-normal)."""
    jitter_samples: tuple[Positive, ...] = ()
    """Measured relative compute times to draw from, instead of a log-normal."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    sample_steps: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Steps whose jitter is drawn; a longer run takes their mean for every step."""

    def scaled_batch(self, usual: int, copies: int) -> int:
        """The batch after `batch_rule`."""
        return max(int((self.batch or usual) * copies ** BATCH_EXPONENT[self.batch_rule]), 1)


class Synchronous(BasePlan):
    """Data parallel with an all-reduce in every step, times tensor and pipeline parallel."""

    kind: Literal["synchronous"] = "synchronous"
    tensor: Count = 1
    pipeline: Count = 1
    micro_batch: Count | None = None
    """Samples that pass the pipeline together; the whole local batch (1 in a pipeline) if unset."""
    all_reduce: AllReduce = "auto"
    overlap: bool = True
    """All-reduce gradients bucket by bucket during the backward pass."""
    bucket_bytes: Positive = 25e6
    recompute: Literal["none", "full"] = "none"
    """`full`: store only the input of each layer and recompute its activations."""
    shard_optimizer: bool = False
    """Each copy stores and updates its part of the optimizer state (ZeRO stage 1)."""

    @property
    def data_parallel(self) -> int:
        """Data-parallel copies of the model."""
        return self.gpus // (self.tensor * self.pipeline)

    @model_validator(mode="after")
    def _divides(self) -> Synchronous:
        if self.gpus % (self.tensor * self.pipeline):
            raise ValueError(
                f"{self.gpus} GPUs cannot hold copies of {self.tensor} (tensor) x {self.pipeline} "
                f"(pipeline) GPUs; use a multiple of {self.tensor * self.pipeline}"
            )
        return self


class Asynchronous(BasePlan):
    """GPU threads add gradients to host memory; an update thread on each node all-reduces and
    applies the sum (SPRINT)."""

    kind: Literal["asynchronous"] = "asynchronous"
    gradient_seconds: Positive | None = None
    """Measured time of one sub-batch's gradients; computed from the layers if unset."""
    update_seconds: Positive | None = None
    """Measured time of one update; computed from the all-reduce and the optimizer if unset."""
    update_jitter: Annotated[float, Field(ge=0, le=3)] = 0


class ParameterServer(BasePlan):
    """Workers push gradients to servers and pull weights without waiting for each other; the
    servers' links are first come, first served."""

    kind: Literal["parameter-server"] = "parameter-server"
    servers: Count = 1


class Averaging(BasePlan):
    """A master sends the model and a data package to each slave and averages the returned models
    (MERPSYS); the number of slaves grows over the epoch."""

    kind: Literal["averaging"] = "averaging"
    first_slaves: Count = 1
    packages: Count = 1
    """Data packages (archives) of an epoch."""
    imbalance: Annotated[float, Field(ge=0, le=1)] = 0
    """Coefficient of variation of the packages' sizes."""
    package_bytes: tuple[Positive, ...] = ()
    """Measured sizes of the packages."""

    @model_validator(mode="after")
    def _grows(self) -> Averaging:
        if self.first_slaves > self.gpus:
            raise ValueError(f"first_slaves ({self.first_slaves}) is above gpus ({self.gpus})")
        return self


Plan = Annotated[
    Synchronous | Asynchronous | ParameterServer | Averaging, Field(discriminator="kind")
]


def single_gpu_plan(plan: BasePlan) -> Synchronous:
    """The same plan on one GPU: the work of one worker between two messages."""
    fields = plan.model_dump(include=set(BasePlan.model_fields), exclude={"gpus", "jitter_samples"})
    return Synchronous(**fields, gpus=1)


def require(condition: bool, message: str, hint: str) -> None:
    """Raises InputError with message and hint unless the condition holds."""
    if not condition:
        raise InputError(message, hint)


class ScheduleSlot(NamedTuple):
    """Forward or backward pass of one micro-batch on one stage."""

    backward: bool
    micro_batch: int


def stage_schedule(stage: int, stages: int, micro_batches: int) -> Iterator[ScheduleSlot]:
    """The passes of a stage in order: forward to warm up, then alternating, then backward."""
    warm_up = min(stages - stage - 1, micro_batches)
    for index in range(warm_up):
        yield ScheduleSlot(False, index)
    for index in range(micro_batches - warm_up):
        yield ScheduleSlot(False, warm_up + index)
        yield ScheduleSlot(True, index)
    for index in range(micro_batches - warm_up, micro_batches):
        yield ScheduleSlot(True, index)


def makespan(
    forward_seconds: list[float],
    backward_seconds: list[float],
    message_seconds: list[float],
    micro_batches: int,
) -> tuple[float, list[float]]:
    """Seconds of one step, and when each stage ends.

    forward_seconds[s] and backward_seconds[s] are of one micro-batch on stage s, message_seconds[s]
    of a message from stage s to s+1.
    """
    stages = len(forward_seconds)
    if stages == 1:
        total = micro_batches * (forward_seconds[0] + backward_seconds[0])
        return total, [total]
    if len(set(forward_seconds)) == len(set(backward_seconds)) == 1 and not any(message_seconds):
        # Equal stages: the closed form, bubble (p−1)/(m+p−1).
        total = (micro_batches + stages - 1) * (forward_seconds[0] + backward_seconds[0])
        return total, [total - s * backward_seconds[0] for s in range(stages)]
    steady = max(8 * stages, MAX_SLOTS // (2 * stages))
    if micro_batches > steady:
        # In the steady state each further micro-batch adds the same time.
        earlier, _ = _slot_by_slot(
            forward_seconds, backward_seconds, message_seconds, steady - 2 * stages
        )
        total, ends = _slot_by_slot(forward_seconds, backward_seconds, message_seconds, steady)
        added = (total - earlier) / (2 * stages) * (micro_batches - steady)
        return total + added, [end + added for end in ends]
    return _slot_by_slot(forward_seconds, backward_seconds, message_seconds, micro_batches)


def _slot_by_slot(
    forward_seconds: list[float],
    backward_seconds: list[float],
    message_seconds: list[float],
    micro_batches: int,
) -> tuple[float, list[float]]:
    stages = len(forward_seconds)
    queues = [list(stage_schedule(s, stages, micro_batches)) for s in range(stages)]
    done: dict[tuple[int, ScheduleSlot], float] = {}
    clock = [0.0] * stages
    position = [0] * stages
    remaining = sum(map(len, queues))
    while remaining:
        for s in range(stages):
            while position[s] < len(queues[s]):
                slot = queues[s][position[s]]
                # The input comes from the neighbour, or is there: samples, or the own forward pass.
                source = s + 1 if slot.backward else s - 1
                ready = 0.0
                if 0 <= source < stages:
                    if (source, slot) not in done:
                        break
                    ready = done[source, slot] + message_seconds[min(s, source)]
                clock[s] = max(clock[s], ready) + (
                    backward_seconds[s] if slot.backward else forward_seconds[s]
                )
                done[s, slot] = clock[s]
                position[s] += 1
                remaining -= 1
    return max(clock), clock


def package_count(plan: Averaging, workload: Workload) -> int:
    """Data packages of an epoch; every sample is one if the plan sets no number."""
    return plan.packages if plan.packages > 1 else workload.dataset.samples


def averaging_schedule(packages: int, first: int, last: int) -> Ints:
    """Number of slaves in each iteration of an epoch (MERPSYS, Kaldi).

    With A packages and slaves growing from n0 to n1 there are ⌊2A/(n0+n1)⌋ iterations. Iteration i
    has ⌊1/2 + n0 + (n1−n0)·i/iterations⌋ slaves. Each iteration is a barrier: the master averages
    when all have returned, so the largest package of an iteration sets its length.
    """
    iterations = 2 * packages // (first + last)
    require(
        iterations > 0,
        f"{packages} packages for {first} to {last} slaves",
        f"give at least {-(-(first + last) // 2)} packages",
    )
    i = np.arange(iterations)
    return np.floor(0.5 + first + (last - first) * i / iterations).astype(np.int64)


def package_sizes(plan: Averaging, packages: int) -> Floats:
    """Relative package sizes with mean 1: measured, or normally distributed by `imbalance`."""
    if plan.package_bytes:
        sizes = np.asarray(plan.package_bytes, dtype=float)
    else:
        rng = np.random.default_rng(plan.seed)
        sizes = np.maximum(1 + plan.imbalance * rng.standard_normal(packages), 0.05)
    return np.asarray(sizes / sizes.mean())


def lognormal(cv: float) -> tuple[float, float]:
    """μ and σ of the log-normal with mean 1 and this coefficient of variation."""
    variance = log(1 + cv * cv)
    return -variance / 2, sqrt(variance)


def lognormal_factors(cv: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Factors with mean 1 and this coefficient of variation; all ones if it is 0."""
    if not cv:
        return np.ones(shape)
    mu, sigma = lognormal(cv)
    return np.asarray(np.exp(mu + sigma * rng.standard_normal(shape)))


def jitter_factors(plan: BasePlan, steps: int, workers: int, rng: np.random.Generator) -> Floats:
    """Factor [k, w] of step k and worker w, with mean 1; all ones without jitter."""
    if plan.jitter_samples:
        samples = np.asarray(plan.jitter_samples)
        return rng.choice(samples / samples.mean(), (steps, workers))
    return lognormal_factors(plan.jitter, (steps, workers), rng)


def slowest_factors(plan: BasePlan, steps: int, workers: int, rng: np.random.Generator) -> Floats:
    """The largest of each step's `jitter_factors`, without holding all of them in memory."""
    if not plan.jitter and not plan.jitter_samples:
        return np.ones(steps)
    result = np.empty(steps)
    rows = max(1, CHUNK // workers)
    for begin in range(0, steps, rows):
        end = min(begin + rows, steps)
        if plan.jitter_samples:
            result[begin:end] = jitter_factors(plan, end - begin, workers, rng).max(axis=1)
        else:
            result[begin:end] = rng.standard_normal((end - begin, workers)).max(axis=1)
    if plan.jitter_samples:
        return result
    # exp is monotonic, so it is enough to take it of the maxima.
    mu, sigma = lognormal(plan.jitter)
    return np.exp(mu + sigma * result)
