"""The rules for giving a job more time. They are pure: the view applies them as an operator."""

from carme.config import ViewSettings
from carme.errors import DeniedError, InputError, MissingError
from carme.slurm.limits import minute_limits, time_limits
from carme.slurm.models import Job
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot
from carme.units import format_duration


def extended_limit(
    job: Job,
    seconds: int,
    uid: int,
    user: str,
    snapshot: Snapshot,
    rights: UserRights,
    rules: ViewSettings,
    now: float,
) -> int:
    """The new time limit in seconds; raises a typed error if there must be none.

    Slurm applies no limit to an operator's update. So this checks the limits that Slurm would apply
    to the user: those of partition, QoS and account, and reservations of the job's nodes.
    """
    if not job.is_owned_by(user, uid):
        raise MissingError("you have no such job in the queue")
    if rules.extend_max_hours <= 0:
        raise DeniedError("this site gives no more time to running jobs")
    if not 60 <= seconds <= 366 * 86400:
        raise InputError("more time must be at least a minute and at most a year")
    if not (job.state.active or job.state.waiting):
        raise InputError("the job has ended")
    if job.array_job_id and job.array_task_id is None:
        # Slurm takes their job id for the whole array, and would also change the running tasks.
        raise InputError(
            f"tasks {job.array_tasks} of an array wait under this one job id",
            "give each task more time when it runs",
        )
    if job.limit_seconds is None:
        raise InputError("the job has no time limit")
    limit = job.limit_seconds + seconds
    _check(limit, int(rules.extend_max_hours * 3600), "this site")
    for name in job.partition.split(","):
        partition = snapshot.partition(name) if name else None
        bounds = time_limits(partition, rights, job.account, job.qos)
        for bound in (*bounds, *minute_limits(job, partition, rights)):
            _check(limit, bound.maximum, bound.source)
    if job.started_at is not None:
        _check_reservations(job, job.started_at + limit, snapshot, now)
    return limit


def _check(limit: int, allowed: int, source: str) -> None:
    if limit > allowed:
        raise DeniedError(
            f"{source} allows {format_duration(allowed)} in all, and this would be "
            f"{format_duration(limit)}"
        )


def _check_reservations(job: Job, end: float, snapshot: Snapshot, now: float) -> None:
    for reservation in snapshot.reservations:
        starts = reservation.starts_at or 0
        reserved = set(job.nodes) & set(reservation.nodes)
        if reserved and now < starts < end and reservation.name != job.reservation:
            raise DeniedError(
                f"{min(reserved)} is reserved from {format_duration(starts - now)} from now on",
                "ask for less time",
            )
