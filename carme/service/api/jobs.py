"""`jobs`: measurements, and how they compare with predictions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from carme.errors import MissingError, UnavailableError
from carme.jobs.models import LOOK_BACK_SECONDS, JobReport, no_such_job
from carme.predict.estimates import Estimate
from carme.service.api.predictions import answer_of
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import (
    MAX_CURSOR,
    Comparison,
    CoverageAnswer,
    JobAnswer,
    JobPage,
    JobsQuery,
)
from carme.service.outcomes import coverage
from carme.service.store import PredictionRow
from carme.slurm.states import JobState

TIMEOUT_SECONDS = 1.8
"""Slurm's accounting may take a minute; a page should not."""
T = TypeVar("T")
api = Api()


@api.endpoint("GET", "/jobs")
def list_jobs(caller: Caller, query: JobsQuery) -> JobPage:
    """Jobs, those that wait and run first; an admin sees the jobs of all users."""
    context = current_context()
    if not caller.admin and query.user not in (None, caller.name):
        return JobPage(items=())
    job_list = _within_timeout(
        context,
        caller,
        lambda: context.cluster.client.reports(
            for_user=caller.name,
            since=query.since or int(time.time()) - LOOK_BACK_SECONDS,
            until=query.until,
            user=query.user if caller.admin else caller.name,
            account=query.account,
            partition=query.partition,
            state=query.state,
            limit=query.cursor + query.limit,
        ),
    )
    items = tuple(job for job in job_list.jobs if caller.may_see(job.user))[query.cursor :]
    next_cursor = query.cursor + query.limit
    next_page = str(next_cursor) if job_list.left_out and next_cursor <= MAX_CURSOR else None
    return JobPage(
        items=items, next=next_page, left_out=job_list.left_out, problem=job_list.problem
    )


@api.endpoint("GET", "/jobs/<int:job_id>")
def get_job(caller: Caller, job_id: int) -> JobAnswer:
    """One job: measured so far, the rest as predicted, and predictions against measurements."""
    context = current_context()
    job = find_job(context, caller, job_id)
    try:
        rows = context.store.page(PredictionRow, job.user, 10, None, job_id=job_id)
    except SQLAlchemyError:
        note = "the database does not answer, so predictions cannot be shown"
        return JobAnswer(job=job, comparisons=(), notes=(note,))
    return JobAnswer(job=job, comparisons=tuple(_compare(row, job) for row in rows))


@api.endpoint("GET", "/coverage")
def get_coverage() -> CoverageAnswer:
    """How often measurements lay within their interval, over all jobs that have ended."""
    return coverage(current_context().store)


def find_job(context: ServiceContext, caller: Caller, job_id: int) -> JobReport:
    """The job's report; MissingError if there is none that the caller may see."""
    if not 0 < job_id < 2**31:
        raise MissingError(f"no job {job_id}", "GET jobs lists yours")
    client = context.cluster.client
    job = _within_timeout(context, caller, lambda: client.report(job_id, caller.name))
    if not caller.may_see(job.user):
        # The view's message for a missing job: it must not reveal that the job exists.
        raise no_such_job(job_id)
    return job


def _within_timeout(context: ServiceContext, caller: Caller, read: Callable[[], T]) -> T:
    try:
        return context.job_questions.call(
            caller.name, context.job_threads.submit, read, seconds=TIMEOUT_SECONDS
        )
    except TimeoutError:
        raise UnavailableError(
            "Slurm's accounting or Prometheus does not answer in time", "try again in a moment"
        ) from None


def _compare(row: PredictionRow, job: JobReport) -> Comparison:
    answer = answer_of(row)
    predicted, seconds = answer.prediction.time, job.elapsed_seconds
    remaining = None
    if not job.state.ended and job.started_at:
        values = {n: max(getattr(predicted, n) - seconds, 0.0) for n in ("value", "low", "high")}
        remaining = Estimate(**values, unit="s")
    is_completed = job.state == JobState.COMPLETED
    return Comparison(
        prediction=answer,
        measured_seconds=seconds,
        measured_gpu_joules=job.measured.joules.get("gpu") if job.measured else None,
        ratio=seconds / predicted.value if is_completed and predicted.value else None,
        within=predicted.low <= seconds <= predicted.high if is_completed else None,
        remaining=remaining,
    )
