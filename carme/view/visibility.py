"""The part of a snapshot that one Unix user may see."""

from carme.slurm.models import Job, Reservation
from carme.slurm.snapshot import Snapshot


def owns(job: Job, user: str, uid: int) -> bool:
    """The job is this user's: by uid where Slurm gives it, since names can be reused."""
    return job.uid == uid if job.uid is not None else bool(user) and job.user == user


def visible_to(snapshot: Snapshot, user: str, uid: int) -> Snapshot:
    """The cluster with this user's own jobs, and without the names of other users."""
    hidden = {partition.name for partition in snapshot.partitions if partition.hidden}
    return snapshot.model_copy(
        update={
            "complete": False,
            "partitions": tuple(p for p in snapshot.partitions if not p.hidden),
            "jobs": tuple(job for job in snapshot.jobs if owns(job, user, uid)),
            "reservations": tuple(_anonymous(r, user) for r in snapshot.reservations),
            "load": {name: load for name, load in snapshot.load.items() if name not in hidden},
        }
    )


def _anonymous(reservation: Reservation, user: str) -> Reservation:
    own = (user,) if user in reservation.users else ()
    return reservation.model_copy(update={"users": own, "accounts": (), "groups": ()})
