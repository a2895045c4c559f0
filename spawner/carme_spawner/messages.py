"""Slurm's states and reasons as messages for users."""

import time

from carme.slurm.models import Job
from carme.slurm.states import JobState

NOTICE_SECONDS = 30
"""Slurm signals a session this long before its time limit, so that it ends cleanly."""

ENDED = {
    JobState.COMPLETED: "The session ended by itself.",
    JobState.CANCELLED: "The session was cancelled.",
    JobState.FAILED: "The session failed.",
    JobState.TIMEOUT: "The time that was asked for is over.",
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
        # To the minute: Slurm's guess is not more exact, and changes often.
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
