"""Plans: how a workload is distributed over GPUs. One class for each way to synchronise copies, and
the schedule of averaging."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from carme.errors import InputError
from carme.simulator.frameworks import Framework
from carme.simulator.hardware import Count, NotNegative, Positive, Share, SimulatorModel
from carme.simulator.precision import NumberType, Precision
from carme.simulator.workload import Floats, Optimizer, Workload

Ints = NDArray[np.int64]
AllReduce = Literal["auto", "ring", "tree", "hierarchical"]
BatchRule = Literal["constant", "linear", "square-root", "cube-root"]
Recompute = Literal["none", "selective", "full"]
Sharding = Literal["none", "optimizer", "gradients", "weights"]
BatchSize = Annotated[int, Field(ge=1, le=10**9)]
BATCH_EXPONENT: dict[BatchRule, float] = {
    "constant": 0.0,
    "linear": 1.0,
    "square-root": 1 / 2,
    "cube-root": 1 / 3,
}


class BasePlan(SimulatorModel):
    """Fields that all plans have."""

    gpus: Count = 1
    nodes: Count | None = None
    """Nodes that the GPUs are spread over evenly; if unset, they fill node after node."""
    batch: BatchSize | None = None
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
    gradient_type: NumberType | None = None
    """Type in which gradients are kept and reduced; that of `precision` if unset."""
    state_type: NumberType | None = None
    """Type of the optimizer's states; that of `precision` if unset."""
    framework: Framework | None = None
    """What launches the kernels; the workload's if unset."""
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
    """Coefficient of variation of compute times over workers and steps (log-normal)."""
    jitter_samples: tuple[Positive, ...] = ()
    """Measured relative compute times to draw from, instead of a log-normal."""
    jitter_persistent: Annotated[float, Field(ge=0, le=1)] = 0.74
    """Share of the jitter's variance that stays with a worker for the whole run. This and the next
    two: medians of four jobs of ten workers (Alibaba, cluster-trace-gpu-v2020)."""
    jitter_drift: Annotated[float, Field(ge=0, le=1)] = 0.23
    """Share that drifts from step to step; the rest is independent."""
    jitter_correlation: Annotated[float, Field(ge=0, lt=1)] = 0.88
    """Correlation of the drift in one step with that in the next."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    sample_steps: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Steps whose jitter is drawn; a longer run takes their mean for every step."""

    @model_validator(mode="after")
    def _jitter_shares(self) -> Self:
        if self.jitter_persistent + self.jitter_drift > 1 + 1e-9:
            raise ValueError("jitter_persistent and jitter_drift are more than 1 together")
        return self

    def scaled_batch(self, usual: int, copies: int) -> int:
        """The batch after `batch_rule`."""
        return max(int((self.batch or usual) * copies ** BATCH_EXPONENT[self.batch_rule]), 1)


class Synchronous(BasePlan):
    """Data parallel with an all-reduce in every step, times tensor and pipeline parallel."""

    kind: Literal["synchronous"] = "synchronous"
    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    """Context parallelism: GPUs that divide the tokens of each sample."""
    expert: Count = 1
    """Expert parallelism: GPUs of one stage that divide the experts."""
    sequence_parallel: bool = False
    """Tensor-parallel GPUs also divide norms and additions."""
    interleave: Count = 1
    """Parts of the network that each stage of the pipeline has (virtual stages)."""
    micro_batch: BatchSize | None = None
    """Samples that pass the pipeline together; the whole local batch (1 in a pipeline) if unset."""
    all_reduce: AllReduce = "auto"
    overlap: bool = True
    """All-reduce gradients bucket by bucket during the backward pass."""
    overlap_layers: bool = False
    """Communication inside layers runs beside their products (Transformer Engine): of tensor
    parallelism all but the first of its pieces, of expert parallelism all."""
    bucket_bytes: Positive = 25e6
    synchronize: Literal["step", "micro-batch"] = "step"
    """With several micro-batches: reduce gradients once in a step, or after each of them."""
    recompute: Recompute = "none"
    """Compute activations again in the backward pass: `full` stores only the input of each layer,
    `selective` all but the attention scores."""
    recompute_layers: Count | None = None
    """With `full`: so many blocks of each GPU; all if unset."""
    adapters: bool = False
    """Only small matrices beside the weights are trained (LoRA): the weights have no gradients and
    no optimizer state. The adapters themselves are not counted."""
    sharding: Sharding = "none"
    """What the copies divide among them (ZeRO): the `optimizer` state (stage 1), also the
    `gradients` (2), also the `weights` (3, FSDP), which are gathered block by block."""
    shard_group: Count | None = None
    """GPUs among which one copy is divided (hybrid sharding); all copies if unset."""
    prefetch: bool = True
    """Gather the weights of the next block while this one computes."""
    shard_optimizer: bool = False
    """The same as `sharding = "optimizer"`."""

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data_parallel(self) -> int:
        """Data-parallel copies of the model: each gets other samples."""
        return self.gpus // self.model_parallel

    @property
    def replicas(self) -> int:
        """GPUs with the same weights, whose gradients are summed."""
        return self.data_parallel * self.context

    @property
    def sharded(self) -> Sharding:
        """What is divided among the replicas."""
        if self.sharding == "none" and self.shard_optimizer:
            return "optimizer"
        return self.sharding

    @property
    def shards(self) -> int:
        """GPUs among which what is `sharded` is divided."""
        return min(self.shard_group or self.replicas, self.replicas)

    @model_validator(mode="after")
    def _divides(self) -> Synchronous:
        if self.gpus % self.model_parallel:
            names = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}
            parts = " x ".join(f"{n} ({k})" for k, n in names.items() if n > 1 or k != "context")
            raise ValueError(
                f"{self.gpus} GPUs cannot hold copies of {parts} GPUs; use a multiple of"
                f" {self.model_parallel}"
            )
        if self.interleave > 1 and self.pipeline == 1:
            raise ValueError("interleave needs a pipeline of at least 2 stages")
        if self.gpus // self.pipeline % self.expert:
            raise ValueError(
                f"{self.gpus // self.pipeline} GPUs of a stage cannot divide the experts among"
                f" {self.expert}; use a divisor"
            )
        if self.shard_group and self.replicas % self.shard_group:
            raise ValueError(
                f"{self.replicas} copies cannot form groups of {self.shard_group} (shard_group)"
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
    fields = plan.model_dump(
        include=set(BasePlan.model_fields), exclude={"gpus", "nodes", "jitter_samples"}
    )
    return Synchronous(**fields, gpus=1)


def require(condition: bool, message: str, hint: str) -> None:
    """Raises InputError with message and hint unless the condition holds."""
    if not condition:
        raise InputError(message, hint)


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
