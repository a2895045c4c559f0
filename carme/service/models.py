"""Requests and answers of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from carme.jobs.models import JobLine, JobReport
from carme.predict.coefficients import Calibration, Provenance
from carme.predict.estimates import Estimate, FrozenModel
from carme.predict.measurements import Steps
from carme.predict.prediction import Prediction
from carme.requests.resource_request import AdviceRequest
from carme.simulator.plans import Plan, Synchronous
from carme.simulator.runs.figures import FIGURES, FigureName
from carme.simulator.workload import Workload

WorkloadName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$")]
GpuText = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ ×*-]{0,63}$")]
SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
LowercaseName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
JobId = Annotated[int, Field(ge=1, le=2**53)]
CalibrationId = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$|^none$")]
UnixSeconds = Annotated[int, Field(ge=0, le=2**40)]
Values = Annotated[
    list[bool | int | float | Annotated[str, Field(max_length=129)] | None],
    Field(min_length=1, max_length=10_000),
]


class HardwareQuery(FrozenModel):
    """A number of a known GPU (`8xV100`), or GPUs of a partition of this cluster."""

    gpus: GpuText | None = None
    """Count and name, such as `8xV100` or `1xA100`."""
    node: LowercaseName | None = None
    """The kind of node, if not the GPU's usual one."""
    network: LowercaseName | None = None
    partition: SlurmName | None = None
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Number of the partition's GPUs."""

    @model_validator(mode="after")
    def _one_way(self) -> HardwareQuery:
        if (self.gpus is None) == (self.partition is None):
            raise ValueError("give either gpus (such as 8xV100) or partition")
        return self


class PageQuery(FrozenModel):
    """Paging of lists."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: (
        Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?-[0-9a-z-]{1,64}$")] | None
    ) = None
    """`next` of the previous page."""


class PredictionRequest(FrozenModel):
    """A workload by name (bundled or your own) or in full, on hardware, by a plan."""

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Plan = Synchronous()
    """Without `gpus`, the plan uses all GPUs that the hardware names."""
    samples: Annotated[int, Field(ge=1, le=10**13)] | None = None
    """Samples in the data set; default: the workload's own number."""
    calibration: CalibrationId | None = None
    """The id of a calibration, or `none` for the data sheet; default: the newest that fits."""
    scaling: bool = False
    """Also look for the next limit at larger GPU counts."""
    keep: bool = False
    """Store the prediction, to compare it with the job later."""
    job_id: JobId | None = None
    """The job that the prediction is made for; only with `keep`."""


class SessionPredictionRequest(AdviceRequest):
    """The request of a session with a workload, as for `advice`, and the session's job."""

    job_id: JobId


class PredictionAnswer(FrozenModel):
    prediction: Prediction
    id: str | None = None
    """Id of the stored prediction."""
    job_id: int | None = None
    created_at: float
    user: str


class PredictionPage(FrozenModel):
    items: tuple[PredictionAnswer, ...]
    next: str | None = None
    """The value of `cursor` for the next page."""


class CalibrationRequest(FrozenModel):
    """Measured steps of a workload on hardware."""

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Synchronous = Synchronous()
    """The plan of the measured run; each step names its own `gpus` and `batch`."""
    steps: Steps | None = None
    job_id: JobId | None = None
    """A measured job of yours. Its power is used and, without steps, its time, if it ran its
    declared workload to the end and was no session."""


class CalibrationAnswer(FrozenModel):
    id: str
    user: str
    workload: str
    gpu: str
    created_at: float
    knowledge: Calibration


class CalibrationPage(FrozenModel):
    items: tuple[CalibrationAnswer, ...]
    next: str | None = None


class WorkloadItem(FrozenModel):
    name: str
    title: str
    own: bool
    parameters: float
    forward_flops: float
    samples: int
    batch: int
    user: str | None = None


class WorkloadPage(FrozenModel):
    items: tuple[WorkloadItem, ...]
    next: str | None = None


class WorkloadAnswer(FrozenModel):
    own: bool
    workload: Workload


class OnnxQuery(FrozenModel):
    """Name and data set of an uploaded ONNX file."""

    name: LowercaseName | None = None
    """Name of the workload; default: the graph's own name."""
    samples: int | None = None
    dimensions: Annotated[str, Field(max_length=1000)] = ""
    """Sizes that the file leaves open, such as `sequence=512,width=224`."""


class HuggingFaceConfig(FrozenModel):
    """The `config.json` of a Hugging Face model, to be stored as a workload."""

    config: dict[str, Any]
    name: LowercaseName
    sequence: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Tokens of a sample; the most that the model allows if unset."""
    samples: Annotated[int, Field(ge=1, le=10**13)] | None = None


class HardwareItem(FrozenModel):
    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    memory_bytes: float
    peak_flops: dict[str, float]
    idle_watts: float
    limit_watts: float
    here: tuple[str, ...]
    """Slurm's names of it on this cluster."""


class HardwareList(FrozenModel):
    items: tuple[HardwareItem, ...]
    notes: tuple[str, ...] = ()


class GpuCount(FrozenModel):
    type: str
    total: int
    free: int
    largest_block: int


class PartitionItem(FrozenModel):
    name: str
    up: bool
    max_seconds: int | None
    gpus: tuple[GpuCount, ...]
    cpus_free: int
    cpus_total: int
    waiting: int
    running: int


class ClusterAnswer(FrozenModel):
    """The cluster now: counts, without users or jobs."""

    name: str
    title: str
    taken_at: float
    controller: Literal["up", "away"]
    error: str
    partitions: tuple[PartitionItem, ...]
    nodes_open: int
    nodes_closed: int


MAX_CURSOR = 400
"""Of a page of jobs: each page reads all jobs before it again."""


class JobsQuery(FrozenModel):
    """Paging, and filters."""

    limit: Annotated[int, Field(ge=1, le=100)] = 25
    cursor: Annotated[int, Field(ge=0, le=MAX_CURSOR)] = 0
    """`next` of the previous page."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    """Only for admins; by default they see the jobs of all users."""
    since: UnixSeconds | None = None
    """Unix seconds; default: a month ago."""
    until: UnixSeconds | None = None
    """Unix seconds; default: now."""
    account: SlurmName | None = None
    partition: SlurmName | None = None
    state: Annotated[str, Field(pattern=r"^[A-Za-z_]{1,32}$")] | None = None
    """running, waiting, ended, or one of Slurm's states such as COMPLETED."""


class JobPage(FrozenModel):
    items: tuple[JobLine, ...]
    next: str | None = None
    left_out: int = 0
    """Number of older jobs that also match."""
    problem: str = ""
    """Why there are no measurements, as a sentence."""


class Comparison(FrozenModel):
    """The prediction made at submission against the measurement, so far or in the end."""

    prediction: PredictionAnswer
    measured_seconds: float
    measured_gpu_joules: float | None
    """None: not measured."""
    ratio: float | None
    """Measured over predicted time, once the job has completed."""
    within: bool | None
    """Whether the measured time lies in the interval."""
    remaining: Estimate | None
    """Predicted time that is left, while the job runs."""


class JobAnswer(FrozenModel):
    """Slurm's record, the measurements so far, and the predictions made for the job."""

    job: JobReport
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


class Coverage(FrozenModel):
    """Counts of predictions whose job has ended. Only a job that ran to its end (COMPLETED) is
    judged."""

    COUNTS: ClassVar[tuple[str, ...]] = (
        "ended", "time_judged", "time_within", "energy_judged", "energy_within",
    )  # fmt: skip

    kind: Literal["session", "job"]
    """The time of a session includes the time in which its user does nothing."""
    source: Literal["data sheet", "fit", "history"]
    ended: int
    time_judged: int
    time_within: int
    energy_judged: int
    """Fewer than `time_judged` where no exporter measured the GPUs."""
    energy_within: int


class CoverageAnswer(FrozenModel):
    """Counts over the jobs of all users."""

    meant: float = 0.9
    """Target: the share of measurements that should lie within their interval."""
    items: tuple[Coverage, ...]


class ParetoObjective(FrozenModel):
    """Chooses the point with the least `minimize` among those that stay within `at_most`."""

    minimize: FigureName = "energy"
    at_most: Mapping[FigureName, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)


class ParetoRequest(FrozenModel):
    """Ranges of plan fields, and of `gpu`: every combination is simulated.

    A `gpu` is `PARTITION:TYPE` of this cluster, or a GPU with known figures such as `v100` in its
    usual node; each is simulated with your newest calibration of it.
    """

    workload: WorkloadName | Workload
    hardware: HardwareQuery
    plan: Plan = Synchronous()
    vary: Annotated[dict[LowercaseName, Values], Field(min_length=1, max_length=8)]
    objectives: Annotated[tuple[FigureName, ...], Field(min_length=1, max_length=len(FIGURES))] = (
        "time",
        "energy",
    )
    wish: ParetoObjective | None = None
    random: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Simulate this many random points instead of all."""
    calibration: CalibrationId | None = None


class ParetoPoint(FrozenModel):
    """A combination and its figures. `energy` and `power` are charged energy and charged power."""

    point: dict[str, Any]
    time: float
    energy: float
    gpu_energy: float
    power: float
    emissions: float
    batch: float
    on_front: bool


class ParetoAnswer(FrozenModel):
    objectives: tuple[FigureName, ...]
    points: tuple[ParetoPoint, ...]
    choice: ParetoPoint | None
    """The point that `wish` chooses."""
    impossible: int
    """Number of points that cannot run."""
    reasons: tuple[str, ...]
    """The first few reasons why they cannot."""
    provenance: Provenance


class TaskAnswer(FrozenModel):
    """A suite that runs in the background; `events` streams its progress, DELETE cancels it."""

    id: str
    state: Literal["running", "done", "cancelled", "failed"]
    done: int
    total: int
    error: str = ""
    result: ParetoAnswer | None = None
