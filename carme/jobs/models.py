"""Reports on jobs, as frozen models: what the view sends, `carme job` prints and services keep."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from carme.slurm.models import Gpus, SlurmModel
from carme.slurm.states import JobState


class RequestedResources(SlurmModel):
    """What the job asked for and got."""

    nodes: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    gpus: Gpus = Field(default_factory=dict)
    limit_seconds: int | None = None

    @property
    def gpu_count(self) -> int:
        """All its GPUs, of whatever type."""
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
    """Held GPUs that ever did anything."""
    gpu_memory_peak_bytes: float | None = None
    """The most that it used on one GPU."""
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
        """The part of the processor time it asked for that it used."""
        if self.cpu_seconds is None or self.cpu_idle_seconds is None:
            return None
        asked = self.cpu_seconds + self.cpu_idle_seconds
        return self.cpu_seconds / asked if asked else None

    @property
    def gpu_busy_ratio(self) -> float | None:
        """The part of its GPU time in which a GPU worked."""
        if not self.gpu_held_seconds or self.gpu_idle_seconds is None:
            return None
        return max(0.0, 1 - self.gpu_idle_seconds / self.gpu_held_seconds)


class Plot(SlurmModel):
    """A few values over a job's time, evenly spaced; None where nobody measured."""

    step_seconds: float
    values: tuple[float | None, ...] = ()


class ReportAdvice(SlurmModel):
    """What to ask for next time."""

    what: Literal["gpus", "cpus", "memory", "time", "fine"]
    text: str


class JobLine(SlurmModel):
    """A job in a list: Slurm's record, and what was measured, as far as it was."""

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
    asked: RequestedResources = RequestedResources()
    measured: MeasuredUsage | None = None

    @property
    def cpus_used(self) -> float | None:
        """Mean number of processors at work."""
        measured = self.measured or MeasuredUsage()
        # Both counters were read at one moment, which the clock of a running job was not.
        if (busy := measured.cpu_busy_ratio) is not None:
            return self.asked.cpus * busy
        if measured.cpu_seconds is None or not self.elapsed_seconds:
            return None
        return measured.cpu_seconds / self.elapsed_seconds


class JobReport(JobLine):
    """All there is to say on one job."""

    reason: str = ""
    problem: str = ""
    """Why nothing was measured, in words."""
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
    """Older ones that also match."""
    problem: str = ""
    """Why nothing was measured, in words."""


class Idleness(SlurmModel):
    """What a running job did lately, for the idle policy."""

    gpu_busy_ratio: float
    """The part of its GPU time in which a GPU worked."""
    cpu_cores: float
    """Mean number of processors at work."""


class IdleJobs(SlurmModel):
    """By job id; a job that was not measured all the time is not in it."""

    jobs: Mapping[int, Idleness] = {}
