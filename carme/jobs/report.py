"""Slurm's record and what was measured become a report. No I/O."""

from typing import NamedTuple

from carme.jobs.advice import advise
from carme.jobs.models import JobLine, JobReport, MeasuredUsage, Plot, RequestedResources
from carme.slurm.models import HistoryJob, Job


class Series(NamedTuple):
    """What Prometheus has of one job."""

    measured: MeasuredUsage | None = None
    gpu_plot: Plot | None = None
    power_plot: Plot | None = None
    network_plot: Plot | None = None


def line(job: Job | HistoryJob, now: float, measured: MeasuredUsage | None = None) -> JobLine:
    """The job as one line of a list."""
    ended = _ended_at(job)
    return JobLine(
        id=job.id,
        label=label(job),
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        state=job.state,
        nodes=job.nodes,
        submitted_at=job.submitted_at,
        started_at=None if job.state.waiting else job.started_at,
        ended_at=ended,
        elapsed_seconds=_elapsed(job, ended, now),
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        asked=RequestedResources(
            nodes=job.node_count or len(job.nodes),
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
            gpus=job.gpus,
            limit_seconds=job.limit_seconds,
        ),
        measured=_with_slurm(job, measured),
    )


def report(
    job: Job | HistoryJob,
    now: float,
    seen: Series | None = None,
    problem: str = "",
) -> JobReport:
    """The whole report, with what to ask for next time."""
    seen = seen or Series()
    short = line(job, now, seen.measured)
    return JobReport(
        **{name: getattr(short, name) for name in JobLine.model_fields},
        reason=job.reason,
        problem=problem,
        gpu_plot=seen.gpu_plot,
        power_plot=seen.power_plot,
        network_plot=seen.network_plot,
        advice=advise(short),
    )


def label(job: Job | HistoryJob) -> str:
    """The number as squeue writes it: `12` or `5_1`."""
    if job.array_job_id and job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    return str(job.id)


def _ended_at(job: Job | HistoryJob) -> int | None:
    if isinstance(job, HistoryJob):
        return job.ended_at if job.state.ended or job.state.ending else None
    # For a job that runs, Slurm gives the end of its limit.
    return job.ends_at if job.state.ended or job.state.ending else None


def _elapsed(job: Job | HistoryJob, ended: int | None, now: float) -> float:
    if job.started_at is None or job.state.waiting:
        return 0
    return max(0.0, (ended if ended is not None else now) - job.started_at)


def _with_slurm(job: Job | HistoryJob, measured: MeasuredUsage | None) -> MeasuredUsage | None:
    """What only Slurm's accounting saw, where no exporter measured."""
    # While a job runs the accounting says zero.
    if not isinstance(job, HistoryJob) or not (job.state.ended or job.state.ending):
        return measured
    base = measured or MeasuredUsage()
    changes: dict[str, float] = {}
    if base.cpu_seconds is None and job.cpu_seconds is not None:
        changes["cpu_seconds"] = job.cpu_seconds
    if base.memory_peak_bytes is None and job.max_rss_bytes is not None and len(job.nodes) <= 1:
        changes["memory_peak_bytes"] = changes["memory_peak_node_bytes"] = job.max_rss_bytes
    return base.model_copy(update=changes) if changes else measured
