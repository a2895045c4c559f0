"""Makes a report of Slurm's record and the measurements of a job, with advice for the next request.
No I/O.

Advice adds a fifth in reserve, and is given only where half or more was unused: a job that runs
out of memory costs more than an unused gigabyte.
"""

import math
from typing import NamedTuple

from carme.jobs.models import (
    JobLine,
    JobReport,
    JobResources,
    MeasuredUsage,
    Plot,
    ReportAdvice,
)
from carme.slurm.models import HistoryJob, Job
from carme.slurm.states import JobState
from carme.units import format_bytes, format_duration

_RESERVE = 1.2
_LOW_USE_SHARE = 0.5
"""Less is suggested if a job used at most this share of what it asked for."""
_GIBIBYTE = 2**30
_SHORT_SECONDS = 20
"""The first seconds of a job say little about the rest."""


class Series(NamedTuple):
    """What Prometheus has of one job."""

    measured: MeasuredUsage | None = None
    gpu_plot: Plot | None = None
    power_plot: Plot | None = None
    network_plot: Plot | None = None


def line(job: Job | HistoryJob, now: float, measured: MeasuredUsage | None = None) -> JobLine:
    """The job as one line of a list."""
    label = str(job.id)  # as squeue writes it
    if job.array_job_id and job.array_task_id is not None:
        label = f"{job.array_job_id}_{job.array_task_id}"
    started_at = None if job.state.waiting else job.started_at
    ended_at = None
    if job.state.ended or job.state.ending:  # for a running job, Slurm gives the end of its limit
        ended_at = job.ended_at if isinstance(job, HistoryJob) else job.ends_at
    elapsed = 0.0
    if started_at is not None:
        elapsed = max(0.0, (now if ended_at is None else ended_at) - started_at)
    return JobLine(
        id=job.id,
        label=label,
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        state=job.state,
        nodes=job.nodes,
        submitted_at=job.submitted_at,
        started_at=started_at,
        ended_at=ended_at,
        elapsed_seconds=elapsed,
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        asked=JobResources(
            nodes=job.node_count or len(job.nodes),
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
            gpus=job.gpus,
            limit_seconds=job.limit_seconds,
        ),
        measured=_with_accounting(job, measured),
    )


def report(
    job: Job | HistoryJob, now: float, series: Series | None = None, problem: str = ""
) -> JobReport:
    """The whole report, with advice."""
    series = series or Series()
    job_line = line(job, now, series.measured)
    plots = {k: v for k, v in series._asdict().items() if k != "measured"}
    return JobReport(
        **{name: getattr(job_line, name) for name in JobLine.model_fields},
        **plots,
        reason=job.reason,
        problem=problem,
        advice=advise(job_line),
    )


def _with_accounting(job: Job | HistoryJob, measured: MeasuredUsage | None) -> MeasuredUsage | None:
    """The measurements, completed from Slurm's accounting where no exporter measured."""
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


def advise(job: JobLine) -> tuple[ReportAdvice, ...]:
    """One sentence for each resource that should be requested differently."""
    if job.state.waiting or not job.elapsed_seconds:
        return ()
    measured = job.measured or MeasuredUsage()
    texts = {"memory": _memory(job, measured), "time": _time(job)}
    if job.elapsed_seconds >= _SHORT_SECONDS:
        texts |= {"gpus": _gpus(job, measured), "cpus": _cpus(job)}
        if job.measured and not any(texts.values()):
            texts["fine"] = "It used what it asked for: ask for the same again."
    order = ("memory", "gpus", "cpus", "time", "fine")
    return tuple(ReportAdvice(what=what, text=text) for what in order if (text := texts.get(what)))


def _gpus(job: JobLine, measured: MeasuredUsage) -> str | None:
    requested, busy, worked = job.asked.gpu_count, measured.gpu_busy_ratio, measured.gpus_worked
    if not requested or busy is None:
        return None
    if busy < 0.01:
        return "No GPU did anything. Ask for none, or check that the program finds them."
    if worked is not None and worked < requested:
        return f"Only {worked} of {requested} GPUs ever worked. Ask for {worked}."
    if busy < _LOW_USE_SHARE:
        return (
            f"The GPUs worked {busy:.0%} of their time. Fewer of them, more loader processes or a"
            " larger batch would use them better."
        )
    return None


def _cpus(job: JobLine) -> str | None:
    used, requested = job.cpus_used, job.asked.cpus
    if used is None or requested <= 1:
        return None
    # Slurm gives out whole cores, and every node of a job has at least one.
    enough = max(1, job.asked.nodes, math.ceil(used * _RESERVE))
    if enough > _LOW_USE_SHARE * requested:
        return None
    return f"It kept {used:.2g} of {requested} CPUs at work. Ask for {enough}."


def _memory(job: JobLine, measured: MeasuredUsage) -> str | None:
    nodes, peak = max(1, job.asked.nodes), measured.memory_peak_node_bytes
    requested, per_node = job.asked.memory_bytes / nodes, " a node" if nodes > 1 else ""
    if job.state == JobState.OUT_OF_MEMORY or measured.oom_kills:
        larger = format_bytes(_whole_gib(max(requested, peak or 0) * 1.5))
        return f"It ran out of memory. Ask for {larger}{per_node} or more."
    if not peak or not requested or job.elapsed_seconds < _SHORT_SECONDS:
        return None
    enough = _whole_gib(peak * _RESERVE)
    if enough > _LOW_USE_SHARE * requested:
        return None
    used = f"It used {format_bytes(peak)} of {format_bytes(requested)}{per_node}."
    return f"{used} Ask for {format_bytes(enough)}."


def _whole_gib(size: float) -> float:
    """Rounded up to whole GiB, at least one: the spawn form accepts nothing else."""
    return max(1, math.ceil(size / _GIBIBYTE)) * _GIBIBYTE


def _time(job: JobLine) -> str | None:
    limit, elapsed = job.asked.limit_seconds, job.elapsed_seconds
    if limit and job.state == JobState.TIMEOUT:
        return (
            f"Its {format_duration(limit)} were not enough. Ask for more time, or save and"
            " resume from checkpoints."
        )
    enough = math.ceil(elapsed * _RESERVE / 300) * 300
    if not limit or job.state != JobState.COMPLETED or enough > _LOW_USE_SHARE * limit:
        return None
    return (
        f"It took {format_duration(elapsed)} of {format_duration(limit)}. Ask"
        f" for {format_duration(enough)}: shorter jobs start sooner."
    )
