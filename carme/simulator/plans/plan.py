"""Plans: how a workload is distributed over GPUs. One class for each way to synchronise copies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme.errors import InputError
from carme.simulator.hardware.cluster import Count, NotNegative, Positive, Precision, Share
from carme.simulator.workloads.workload import Optimizer

AllReduce = Literal["auto", "ring", "tree", "hierarchical"]
BatchRule = Literal["constant", "linear", "square-root", "cube-root"]
BATCH_EXPONENT: dict[BatchRule, float] = {
    "constant": 0.0,
    "linear": 1.0,
    "square-root": 1 / 2,
    "cube-root": 1 / 3,
}


class BasePlan(BaseModel):
    """Fields that all plans have."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

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
