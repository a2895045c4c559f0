"""`jobs`: what was measured, and how that compares with what was predicted."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Annotated, TypeVar

from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from carme.errors import MissingError, UnavailableError
from carme.jobs.models import JobReport
from carme.predict.estimates import Estimate, FrozenModel
from carme.predict.prediction import Prediction
from carme.service.api.predictions import shown
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.coverage import CoverageAnswer
from carme.service.models.jobs import Comparison, JobAnswer, JobPage
from carme.service.models.requests import SlurmName
from carme.service.outcomes import coverage
from carme.service.store import PredictionRow
from carme.slurm.states import JobState

LOOK_BACK_SECONDS = 31 * 86400
MOST_BACK = 400
"""Jobs before a page: each page asks for all of them again."""
PATIENCE_SECONDS = 1.8
"""Slurm's accounting may take a minute; a page should not."""
T = TypeVar("T")
_threads = ThreadPoolExecutor(4, "jobs")


class JobsQuery(FrozenModel):
    """Paging, and whose jobs."""

    limit: Annotated[int, Field(ge=1, le=100)] = 25
    cursor: Annotated[int, Field(ge=0, le=MOST_BACK)] = 0
    """`next` of the page before."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    """Only for admins, who see everybody's without it."""
    since: Annotated[int, Field(ge=0, le=2**40)] | None = None
    """Unix seconds; a month ago if unset."""
    until: Annotated[int, Field(ge=0, le=2**40)] | None = None
    """Unix seconds; now if unset."""
    account: SlurmName | None = None
    partition: SlurmName | None = None
    state: Annotated[str, Field(pattern=r"^[A-Za-z_]{1,32}$")] | None = None
    """running, waiting, ended, or Slurm's word such as COMPLETED."""


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint("GET", "/jobs", query=JobsQuery, answer=JobPage)
    def list_jobs(who: Caller, query: JobsQuery) -> JobPage:
        """Jobs, those that wait and run first; an admin sees everybody's."""
        context = current_context()
        if not who.admin and query.user not in (None, who.name):
            return JobPage(items=())
        user = query.user if who.admin else who.name
        job_list = _soon(
            lambda: context.cluster.client.reports(
                since=query.since or int(time.time()) - LOOK_BACK_SECONDS,
                until=query.until,
                user=user,
                account=query.account,
                partition=query.partition,
                state=query.state,
                limit=query.cursor + query.limit,
            )
        )
        items = tuple(job for job in job_list.jobs if who.may_see(job.user))[query.cursor :]
        after = query.cursor + query.limit
        more = str(after) if job_list.left_out and after <= MOST_BACK else None
        return JobPage(items=items, next=more, left_out=job_list.left_out, problem=job_list.problem)

    @api.endpoint("GET", "/jobs/<int:job_id>", answer=JobAnswer)
    def get_job(who: Caller, job_id: int) -> JobAnswer:
        """One job: measured so far, the rest as predicted, and the prediction against what came."""
        context = current_context()
        job = find_job(context, who, job_id)
        try:
            rows = context.store.page(PredictionRow, job.user, 10, None, job_id=job_id)
        except SQLAlchemyError:
            note = "the database does not answer, so predictions cannot be shown"
            return JobAnswer(job=job, comparisons=(), notes=(note,))
        return JobAnswer(job=job, comparisons=tuple(_compare(row, job) for row in rows))

    @api.endpoint("GET", "/coverage", answer=CoverageAnswer)
    def get_coverage(who: Caller) -> CoverageAnswer:  # noqa: ARG001
        """How often the intervals of predictions held, over all jobs that have ended."""
        return coverage(current_context().store)


def find_job(context: ServiceContext, who: Caller, job_id: int) -> JobReport:
    """The job's report; MissingError if it is not there or not the caller's."""
    if not 0 < job_id < 2**31:
        raise MissingError(f"no job {job_id}", "GET jobs lists yours")
    job = _soon(lambda: context.cluster.client.report(job_id))
    if not who.may_see(job.user):
        # The words of the view for a job that is not there: that it exists is its owner's to know.
        raise MissingError(
            f"you have no job {job_id} of the last month", "`carme jobs` lists what there is"
        )
    return job


def _soon(question: Callable[[], T]) -> T:
    try:
        return _threads.submit(question).result(timeout=PATIENCE_SECONDS)
    except Late:
        raise UnavailableError(
            "Slurm's accounting or Prometheus does not answer in time", "try again in a moment"
        ) from None


def _compare(row: PredictionRow, job: JobReport) -> Comparison:
    prediction = Prediction.model_validate(row.body)
    seconds, over = job.elapsed_seconds, job.state.ended
    joules = job.measured.joules.get("gpu") if job.measured else None
    left = None
    if not over and job.started_at:
        left = Estimate(
            value=max(prediction.time.value - seconds, 0.0),
            low=max(prediction.time.low - seconds, 0.0),
            high=max(prediction.time.high - seconds, 0.0),
            unit="s",
        )
    done = over and job.state == JobState.COMPLETED
    return Comparison(
        prediction=shown(row),
        measured_seconds=seconds,
        measured_gpu_joules=joules,
        ratio=seconds / prediction.time.value if done and prediction.time.value else None,
        within=prediction.time.low <= seconds <= prediction.time.high if done else None,
        remaining=left,
    )
