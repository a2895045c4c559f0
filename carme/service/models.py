"""Bodies and answers of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from carme.jobs.models import JobLine, JobReport
from carme.predict.coefficients import Knowledge, Provenance
from carme.predict.figures import Figure, Part
from carme.predict.measurements import Steps
from carme.predict.prediction import Prediction
from carme.simulator.plan import Plan, Synchronous
from carme.simulator.workload import Workload

Objective = Literal["time", "energy", "gpu_energy", "power", "emissions"]
WorkloadName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$")]
GpuText = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ ×*-]{0,63}$")]
SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Hardware(Part):
    """A number of a known GPU (`8xV100`), or GPUs of a partition of this cluster."""

    gpus: GpuText | None = None
    """How many of which, such as `8xV100` or `1xA100`."""
    node: Word | None = None
    """The kind of node, if not the GPU's usual one."""
    network: Word | None = None
    partition: SlurmName | None = None
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Of the partition's GPUs."""

    @model_validator(mode="after")
    def _one_way(self) -> Hardware:
        if (self.gpus is None) == (self.partition is None):
            raise ValueError("give either gpus (such as 8xV100) or partition")
        return self


class PredictionRequest(Part):
    """A workload by name (bundled or your own) or in full, on hardware, by a plan."""

    workload: WorkloadName | Workload
    hardware: Hardware
    plan: Plan = Synchronous()
    """`gpus` may be left out: the hardware says how many."""
    samples: Annotated[int, Field(ge=1, le=10**13)] | None = None
    """Of the data set; its own number if unset."""
    calibration: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$|^none$")] | None = None
    """The id of one to use, or `none` for the data sheet; unset: the newest that fits."""
    scaling: bool = False
    """Also look for the next limit at larger GPU counts."""
    keep: bool = False
    """Store it, for comparing later."""
    job_id: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The job it is made for; only with `keep`."""


class PredictionAnswer(Part):
    prediction: Prediction
    id: str | None = None
    """Of the stored prediction."""
    job_id: int | None = None
    created_at: float
    user: str


class PredictionPage(Part):
    items: tuple[PredictionAnswer, ...]
    next: str | None = None
    """The value of `cursor` for the next page."""


class Wish(Part):
    """What matters: the point of the front with the least of one, where others are bounded."""

    minimize: Objective = "energy"
    at_most: Mapping[Objective, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)


Values = Annotated[
    list[bool | int | float | Annotated[str, Field(max_length=64)] | None],
    Field(min_length=1, max_length=10_000),
]


class ParetoRequest(Part):
    """Ranges of plan fields (and `gpu`, a GPU's name): every combination is simulated."""

    workload: WorkloadName | Workload
    hardware: Hardware
    plan: Plan = Synchronous()
    vary: Annotated[dict[Word, Values], Field(min_length=1, max_length=8)]
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=5)] = (
        "time",
        "energy",
    )
    wish: Wish | None = None
    random: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """So many random points instead of all."""
    calibration: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$|^none$")] | None = None


class ParetoPoint(Part):
    """A choice and what comes of it. `energy` and `power` are of the nodes."""

    point: dict[str, Any]
    time: float
    energy: float
    gpu_energy: float
    power: float
    emissions: float
    batch: float
    on_front: bool


class ParetoAnswer(Part):
    objectives: tuple[Objective, ...]
    points: tuple[ParetoPoint, ...]
    choice: ParetoPoint | None
    """The point that the wish asks for."""
    impossible: int
    """Points that cannot run."""
    reasons: tuple[str, ...]
    """Why, the first few."""
    provenance: Provenance


class TaskAnswer(Part):
    """A suite under way; `events` streams its progress, DELETE cancels it."""

    id: str
    state: Literal["running", "done", "cancelled", "failed"]
    done: int
    total: int
    error: str = ""
    result: ParetoAnswer | None = None


class WorkloadItem(Part):
    name: str
    title: str
    own: bool
    parameters: float
    forward_flops: float
    samples: int
    batch: int
    user: str | None = None


class WorkloadPage(Part):
    items: tuple[WorkloadItem, ...]
    next: str | None = None


class WorkloadAnswer(Part):
    own: bool
    workload: Workload


class HardwareItem(Part):
    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    memory_bytes: float
    peak_flops: dict[str, float]
    idle_watts: float
    limit_watts: float
    here: tuple[str, ...]
    """Slurm's names of it on this cluster."""


class HardwareList(Part):
    items: tuple[HardwareItem, ...]
    notes: tuple[str, ...] = ()


class GpuCount(Part):
    type: str
    total: int
    free: int
    largest_block: int


class PartitionItem(Part):
    name: str
    up: bool
    max_seconds: int | None
    gpus: tuple[GpuCount, ...]
    cpus_free: int
    cpus_total: int
    waiting: int
    running: int


class ClusterAnswer(Part):
    """The cluster now: counts, nobody's names."""

    name: str
    title: str
    taken_at: float
    controller: Literal["up", "away"]
    error: str
    partitions: tuple[PartitionItem, ...]
    nodes_open: int
    nodes_closed: int


class CalibrationRequest(Part):
    """Measured steps of a workload on hardware."""

    workload: WorkloadName | Workload
    hardware: Hardware
    plan: Synchronous = Synchronous()
    """How it was run, apart from `gpus` and `batch`, which the steps say."""
    steps: Steps | None = None
    job_id: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """A job of yours that Prometheus knows: the power is taken from it, and without steps the
    time, if it ran its declared workload to the end."""


class CalibrationAnswer(Part):
    id: str
    user: str
    workload: str
    gpu: str
    created_at: float
    knowledge: Knowledge


class CalibrationPage(Part):
    items: tuple[CalibrationAnswer, ...]
    next: str | None = None


class Comparison(Part):
    """What was predicted at submission against what came, so far or in the end."""

    prediction: PredictionAnswer
    measured_seconds: float
    measured_gpu_joules: float | None
    """None: nobody measured it."""
    ratio: float | None
    """Measured over predicted time, once the job is over."""
    within: bool | None
    """Whether it lies in the interval."""
    remaining: Figure | None
    """Predicted time that is left, while it runs."""


class JobAnswer(Part):
    """Slurm's record, what was measured so far, and the predictions made for it."""

    job: JobReport
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


class JobPage(Part):
    items: tuple[JobLine, ...]
    next: str | None = None
    problem: str = ""
    """Why nothing was measured, in words."""


class Page(Part):
    """Paging of lists."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: (
        Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?-[0-9a-z-]{1,64}$")] | None
    ) = None
    """`next` of the page before."""
