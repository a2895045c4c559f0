"""Messages for users: why a session waits, why it ended, and why it cannot start."""

import time
from collections.abc import Mapping
from html import escape

from jupyterhub.spawner import SpawnException
from tornado import web

from carme.errors import BusyError, CarmeError, UnavailableError
from carme.slurm.models import Job
from carme.slurm.states import JobState

NOTICE_SECONDS = 30
"""Slurm signals a session this long before its time limit, so that it ends cleanly."""

RETRY_SECONDS = 5
"""When to ask again after a refusal above a limit per user."""

ENDED = {
    JobState.COMPLETED: "The session ended by itself.",
    JobState.CANCELLED: "The session was cancelled.",
    JobState.FAILED: "The session failed.",
    JobState.TIMEOUT: "The session reached its time limit.",
    JobState.DEADLINE: "The session could not finish before its deadline.",
    JobState.OUT_OF_MEMORY: "The session used more memory than it asked for. Ask for more memory.",
    JobState.NODE_FAIL: "The node that the session ran on failed.",
    JobState.BOOT_FAIL: "The node for the session did not start.",
    JobState.PREEMPTED: "The session had to make room for a job with a higher priority.",
    JobState.REVOKED: "The session was moved to another cluster and is not here any more.",
}

WAITS = {
    "Resources": "waiting for resources to become free",
    "Priority": "waiting behind jobs with a higher priority",
    "Dependency": "waiting for another job",
    "BeginTime": "waiting for its start time",
    "ReqNodeNotAvail": "the nodes that fit are not available",
    "Reservation": "waiting for its reservation",
    "PartitionDown": "the partition takes no jobs at the moment",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held by you",
    "QOSMaxGRESPerUser": "you already use as many GPUs as you may",
    "QOSMaxJobsPerUserLimit": "you already run as many jobs as you may",
    "QOSMaxCpuPerUserLimit": "you already use as many cores as you may",
    "QOSMaxMemoryPerUser": "you already use as much memory as you may",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than its QoS allows",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than its account allows",
    "QOSMaxGRESPerJob": "it asks for more GPUs than its QoS gives one job",
    "AssocMaxGRESPerJob": "it asks for more GPUs than its account gives one job",
    "QOSGrpGRES": "all jobs of its QoS together already use as many GPUs as they may",
    "QOSGrpCpuLimit": "all jobs of its QoS together already use as many cores as they may",
    "AssocMaxJobsLimit": "you already run as many jobs in this account as you may",
    "AssocGrpMemLimit": "your group already uses as much memory as it may",
    "ReservationDeleted": "its reservation is gone; stop it and start again without",
    "InvalidAccount": "you may not use its account any more",
    "InvalidQOS": "you may not use its QoS any more",
    "AssocGrpGRES": "your group already uses as many GPUs as it may",
    "AssocGrpCpuLimit": "your group already uses as many cores as it may",
}


FOREIGN_JOB = (
    "The job that was reported for this session is not this session's. The hub does not touch that "
    "job. Start the session again; if that does not help, ask the administrators: the hub's log "
    "has the details."
)


def waiting(job: Job) -> str:
    """Why the job waits."""
    reason = job.reason.split(",")[0].strip("()") or "None"
    if reason == "None":
        return "waiting to be scheduled"
    return WAITS.get(reason, f"waiting ({reason})")


def in_queue(job: Job, place: int | None) -> str:
    """Why the job waits, where it stands, and when Slurm expects it to start."""
    text = f"Job {job.id} is {waiting(job)}"
    if place:
        text += f", number {place} in the queue of {job.partition}"
    if job.expected_start_at:
        # To the minute: Slurm's estimate is not more exact, and changes often.
        moment = time.strftime("%a %H:%M", time.localtime(job.expected_start_at))
        text += f"; Slurm expects it to start {moment}"
    return text


def ended(job: Job) -> str:
    """Why a session ended."""
    state = job.state
    if state.ending or _ran_out(job):
        state = JobState.TIMEOUT if _ran_out(job) else JobState.COMPLETED
    return ENDED.get(state, f"The session ended ({state.lower().replace('_', ' ')}).")


def _ran_out(job: Job) -> bool:
    """A session that ends cleanly on notice is "completed" for Slurm, but its time was over."""
    if job.limit_seconds is None or job.started_at is None or job.ends_at is None:
        return False
    clean = job.state in (JobState.COMPLETED, JobState.FAILED, JobState.COMPLETING)
    # Slurm looks at the clock every half a minute or so.
    return clean and job.ends_at - job.started_at >= job.limit_seconds - NOTICE_SECONDS - 35


def http_status(error: CarmeError) -> int:
    """429 above a limit per user; 503 while view, helper or Slurm is away; 400 for what they
    refuse."""
    if isinstance(error, BusyError):
        return 429
    return 503 if isinstance(error, UnavailableError) else 400


def http_error(error: CarmeError) -> web.HTTPError:
    """The error as a response of the hub's API."""
    response = web.HTTPError(http_status(error), str(error))
    if isinstance(error, BusyError):
        headers = {"Retry-After": str(error.retry_seconds)}
        response.headers = headers  # type: ignore[attr-defined] # JupyterHub sends them
    return response


class SessionFailure(SpawnException):
    """A message for the user, with the end of the session's log where there is one.

    JupyterHub's pages look for attributes that its own exception does not set.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        log: str = "",
        status_code: int = 400,
        problems: Mapping[str, str] | None = None,
    ) -> None:
        html = f"<p>{escape(message)}</p>"
        if log:
            html += f'<p>The end of its log:</p><pre class="text-start">{escape(log)}</pre>'
            message += f"\nThe end of its log:\n{log}"
        super().__init__(message, reason=reason, message_html=html, status_code=status_code)
        self.problems = problems or {}
        """Field to message, when the options were wrong."""
        if status_code == 429:
            self.headers = {"Retry-After": str(RETRY_SECONDS)}  # JupyterHub sends it
        self.jupyterhub_message = message
        self.jupyterhub_html_message = html
