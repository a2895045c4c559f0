"""Reports on jobs from Slurm and Prometheus.

Researchers have no credentials for Prometheus: they get fixed queries about their own jobs.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import Field, ValidationError

from carme.config import PrometheusSettings as Settings
from carme.errors import BusyError, CarmeError, InputError
from carme.fair_use import FairGate
from carme.jobs import queries
from carme.jobs.models import (
    LOOK_BACK_SECONDS,
    IdleJobs,
    JobLine,
    JobList,
    JobReport,
    MeasuredUsage,
    Plot,
    no_such_job,
)
from carme.jobs.report_builder import Series, line, report
from carme.prometheus import PrometheusClient
from carme.slurm.models import HistoryJob, Job, SlurmModel
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState
from carme.validation import explain_first

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_JOBS = 500
"""The longest list: each job's series are looked up."""
_BATCH = 100
_THREADS = 2
_WAITING = 8
"""Questions of one user that wait while another of theirs is answered."""
_NO_PROMETHEUS = "Prometheus does not answer; these are Slurm's own figures"
_TOO_EARLY = "It has only just begun: the first figures come within a minute."
_NO_FIGURES = (
    "Prometheus has no figures of it: older than it keeps, or on nodes without an exporter."
)

History = Callable[[int, int | None], Awaitable[Sequence[HistoryJob]]]
"""Reads the jobs between two moments that the caller may see from the accounting database."""


class JobFilter(SlurmModel):
    """Chooses the jobs of a list."""

    since: int
    until: int | None = None
    user: str = ""
    account: str = ""
    partition: str = ""
    state: str = ""
    limit: int = Field(default=100, ge=1, le=MAX_JOBS)

    def wants(self, job: Job | HistoryJob) -> bool:
        """Whether the list holds the job."""
        states = {"", job.state.lower()}
        if job.state.waiting:
            states.add("waiting")
        if job.state.ended or job.state.ending:
            states.add("ended")
        return (
            self.user in ("", job.user)
            and self.account in ("", job.account)
            and (not self.partition or self.partition in job.partition.split(","))
            and self.state.lower() in states
        )


def parse_filter(query: Mapping[str, str]) -> JobFilter:
    """The filter in a request; InputError names the field that is wrong."""
    try:
        job_filter = JobFilter.model_validate(query)
    except ValidationError as error:
        raise InputError(explain_first(error)) from None
    if job_filter.state and job_filter.state.lower() not in _STATE_FILTERS:
        raise InputError(
            f"there is no state {job_filter.state!r}",
            "one of running, waiting, ended, failed, or Slurm's word such as COMPLETED",
        )
    return job_filter


_STATE_FILTERS = {"running", "waiting", "ended", *(state.lower() for state in JobState)}


class JobReporter:
    """Reports for the view. Prometheus is queried from two threads of its own."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        # A slow Prometheus must not occupy the threads that query Slurm.
        self._threads = ThreadPoolExecutor(_THREADS, "prometheus")
        self.gate = FairGate("questions about measurements", _THREADS, 1, _WAITING)

    async def report(
        self, job_id: int, snapshot: Snapshot, history: History, asker: str
    ) -> JobReport:
        """One job; MissingError if there is none that the caller may see.

        Raises BusyError if `asker`, for whom this is, has too many questions open.
        """
        job = await self._find(job_id, snapshot, history)
        now = self._now()
        if job.state.waiting or job.started_at is None:
            return report(job, now, problem="It has not begun yet.")
        job_line = line(job, now)
        try:
            series = await self._ask(
                asker, lambda p: _measure(p, job_line, now, self._settings.scrape_seconds)
            )
        except BusyError:
            raise
        except CarmeError as error:
            log.warning("job %d: %s", job_id, error)
            return report(job, now, problem=_NO_PROMETHEUS)
        problem = ""
        if not series.measured:
            is_new = not job_line.ended_at and job_line.elapsed_seconds < queries.SETTLE_SECONDS
            problem = _TOO_EARLY if is_new else _NO_FIGURES
        return report(job, now, series, problem)

    async def listing(
        self, job_filter: JobFilter, snapshot: Snapshot, history: History, asker: str
    ) -> JobList:
        """The jobs that match, newest first."""
        now = self._now()
        # The queue is newer than the accounting database for jobs that run.
        by_id: dict[int, Job | HistoryJob] = {
            job.id: job
            for job in await history(job_filter.since, job_filter.until)
            if job_filter.wants(job)
        }
        for job in snapshot.jobs:
            accounted = by_id.pop(job.id, None)
            over = job.state.ended or job.state.ending
            submitted_at = job.submitted_at or job_filter.since
            in_time = not job_filter.until or submitted_at < job_filter.until
            if over and accounted:
                by_id[job.id] = accounted
            elif not over and in_time and job_filter.wants(job):
                by_id[job.id] = job
        ordered = sorted(by_id.values(), key=lambda job: -(job.started_at or job.id))
        ordered.sort(key=lambda job: not job.state.waiting)
        shown = ordered[: job_filter.limit]
        lines = [line(job, now) for job in shown]
        try:
            measured = await self._ask(asker, lambda p: _measure_many(p, lines, now))
        except BusyError:
            raise
        except CarmeError as error:
            log.warning("a list of jobs: %s", error)
            measured, problem = {}, _NO_PROMETHEUS
        else:
            problem = ""
        return JobList(
            jobs=tuple(line(job, now, measured.get(job.id)) for job in shown),
            left_out=len(ordered) - len(shown),
            problem=problem,
        )

    async def idle(self, job_ids: Sequence[int], seconds: float, asker: str) -> IdleJobs:
        """How idle running jobs were in the last `seconds`; UnavailableError without Prometheus."""
        if not job_ids:
            return IdleJobs()
        expression = queries.idleness(job_ids, seconds)
        samples = await self._ask(asker, lambda p: p.query(expression))
        return IdleJobs(jobs=queries.read_idleness(samples, seconds))

    async def _ask(self, asker: str, read: Callable[[PrometheusClient], T]) -> T:
        def ask() -> T:
            # The login file may have changed since the last query.
            return read(PrometheusClient.of(self._settings.url, self._settings.login_file))

        return await self.gate.run(asker, self._threads, ask)

    async def _find(self, job_id: int, snapshot: Snapshot, history: History) -> Job | HistoryJob:
        queued = snapshot.job(job_id)
        if queued and not (queued.state.ended or queued.state.ending):
            return queued
        # An ended job is in both; only the accounting has its CPU time and memory.
        since = int(self._now()) // 86400 * 86400 - LOOK_BACK_SECONDS
        accounted = next((job for job in await history(since, None) if job.id == job_id), None)
        job = accounted if accounted and (accounted.ended_at or not queued) else queued or accounted
        if not job:
            # The same message for another user's job: it must not reveal that the job exists.
            raise no_such_job(job_id)
        return job


def _span(job: JobLine, now: float) -> tuple[float, float]:
    """The job's start, and when Prometheus has its last values or, before that, now."""
    start = float(job.started_at or now)
    end = float(job.ended_at) + queries.SETTLE_SECONDS if job.ended_at else now
    return start, min(end, now)


def _measure(
    prometheus: PrometheusClient, job: JobLine, now: float, scrape_seconds: float
) -> Series:
    start, end = _span(job, now)
    totals = prometheus.query(queries.totals([job.id], end - start), end)
    if not totals:
        return Series()
    peaks = prometheus.query(queries.gpu_peaks(job.id, end - start), end)
    measured = queries.read_totals(totals, peaks).get(job.id)
    seconds = (job.ended_at or now) - start
    step = queries.plot_step(seconds, scrape_seconds)
    count = int(seconds // step)
    if count < 2:
        return Series(measured)

    def plot(expression: str) -> Plot | None:
        lines = prometheus.query_range(expression, start + step, start + count * step, step)
        return queries.read_plot(lines, start, step, count)

    plots = {name: plot(expr) for name, expr in queries.plots(job.id, step).items()}
    return Series(measured, **plots)


def _measure_many(
    prometheus: PrometheusClient, jobs: Sequence[JobLine], now: float
) -> dict[int, MeasuredUsage]:
    """Measurements by job id. Queried in batches: a query spans the time of its batch only."""
    begun = [job for job in jobs if job.started_at]
    measured: dict[int, MeasuredUsage] = {}
    for first in range(0, len(begun), _BATCH):
        batch = begun[first : first + _BATCH]
        spans = [_span(job, now) for job in batch]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        ids = [job.id for job in batch]
        expression = queries.totals(ids, end - start, queries.LIST_TOTALS)
        measured |= queries.read_totals(prometheus.query(expression, end))
    return measured
