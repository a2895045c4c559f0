"""Reports on jobs as frozen models: the view sends them, `carme job` and the service show them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from carme.errors import MissingError
from carme.slurm.models import Gpus, SlurmModel
from carme.slurm.states import JobState

LOOK_BACK_SECONDS = 31 * 86400
"""How far back a job is looked for; Slurm's accounting is asked for a month at most."""


def no_such_job(job: int | str) -> MissingError:
    """The error for a job that the caller may not see, whether or not it exists."""
    return MissingError(f"you have no job {job} of the last month", "`carme jobs` lists your jobs")


class JobResources(SlurmModel):
    """The resources that the job requested and got."""

    nodes: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    gpus: Gpus = Field(default_factory=dict)
    limit_seconds: int | None = None

    @property
    def gpu_count(self) -> int:
        """The number of its GPUs of all types."""
        return sum(self.gpus.values())


class MeasuredUsage(SlurmModel):
    """The last values of a job's counters, all nodes together; None: not measured."""

    joules: Mapping[str, float] = {}
    """Energy by component: gpu, cpu, dram, rest."""
    joules_by_node: Mapping[str, float] = {}
    estimated_joules: float = 0
    uncertainty_ratio: float | None = None
    """Relative standard uncertainty of the energy."""
    emissions_grams: float | None = None
    cost: Mapping[str, float] = {}
    """By currency."""
    gpu_held_seconds: float | None = None
    gpu_idle_seconds: float | None = None
    gpu_idle_joules: float | None = None
    gpus_worked: int | None = None
    """Number of held GPUs that did any work."""
    gpu_memory_peak_bytes: float | None = None
    """The highest use on one GPU."""
    cpu_seconds: float | None = None
    cpu_idle_seconds: float | None = None
    memory_peak_bytes: float | None = None
    """The sum of the peaks on its nodes."""
    memory_peak_node_bytes: float | None = None
    """The highest peak on one node."""
    oom_kills: int | None = None
    network_bytes: float | None = None
    io_bytes: float | None = None

    @property
    def total_joules(self) -> float:
        """All components."""
        return sum(self.joules.values())

    @property
    def cpu_busy_ratio(self) -> float | None:
        """CPU time that it used over CPU time that it requested."""
        if self.cpu_seconds is None or self.cpu_idle_seconds is None:
            return None
        requested = self.cpu_seconds + self.cpu_idle_seconds
        return self.cpu_seconds / requested if requested else None

    @property
    def gpu_busy_ratio(self) -> float | None:
        """The part of its GPU time in which a GPU worked."""
        if not self.gpu_held_seconds or self.gpu_idle_seconds is None:
            return None
        return max(0.0, 1 - self.gpu_idle_seconds / self.gpu_held_seconds)


class Plot(SlurmModel):
    """A few values over a job's time, evenly spaced; None where nothing was measured."""

    step_seconds: float
    values: tuple[float | None, ...] = ()


class ReportAdvice(SlurmModel):
    """Advice for the next request."""

    what: Literal["gpus", "cpus", "memory", "time", "fine"]
    text: str


class JobLine(SlurmModel):
    """A job in a list: Slurm's record and, if there are any, its measurements."""

    id: int
    label: str = ""
    """The number as squeue writes it, such as `5_1`."""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    state: JobState = JobState.UNKNOWN
    nodes: tuple[str, ...] = ()
    submitted_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    """None while it runs."""
    elapsed_seconds: float = 0
    exit_code: int | None = None
    exit_signal: int | None = None
    asked: JobResources = JobResources()
    measured: MeasuredUsage | None = None

    @property
    def cpus_used(self) -> float | None:
        """Mean number of processors at work."""
        measured = self.measured or MeasuredUsage()
        # Both counters were read at the same time; the elapsed time of a running job is later.
        if (busy := measured.cpu_busy_ratio) is not None:
            return self.asked.cpus * busy
        if measured.cpu_seconds is None or not self.elapsed_seconds:
            return None
        return measured.cpu_seconds / self.elapsed_seconds


class JobReport(JobLine):
    """The full report on one job."""

    reason: str = ""
    problem: str = ""
    """Why there are no measurements, as a sentence."""
    gpu_plot: Plot | None = None
    """Mean utilisation of its GPUs, 0 to 1."""
    power_plot: Plot | None = None
    """Watts."""
    network_plot: Plot | None = None
    """Bytes a second."""
    advice: tuple[ReportAdvice, ...] = ()


class JobList(SlurmModel):
    """The newest jobs first."""

    jobs: tuple[JobLine, ...] = ()
    left_out: int = 0
    """Number of older jobs that also match."""
    problem: str = ""
    """Why there are no measurements, as a sentence."""


class Idleness(SlurmModel):
    """How busy a running job was lately, for the idle policy."""

    gpu_busy_ratio: float
    """The part of its GPU time in which a GPU worked."""
    cpu_cores: float
    """Mean number of processors at work."""


class IdleJobs(SlurmModel):
    """By job id, without jobs that were measured for less than half of the time."""

    jobs: Mapping[int, Idleness] = {}
