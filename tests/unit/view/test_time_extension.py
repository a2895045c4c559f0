import pytest

from carme.config import ViewSettings
from carme.errors import CarmeError, DeniedError, InputError, MissingError
from carme.slurm.models import Job, Partition, Reservation
from carme.slurm.rights import Association, JobLimits, Qos, UserRights
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState
from carme.view.time_extension import extended_limit

NOW = 10_000
JOB = Job(
    id=1,
    user="alice",
    uid=1001,
    partition="gpu",
    state=JobState.RUNNING,
    limit_seconds=3600,
    started_at=NOW - 600,
    nodes=("gpu01",),
)
SNAPSHOT = Snapshot(taken_at=NOW, partitions=(Partition(name="gpu", max_seconds=8 * 3600),))


def limit(
    seconds: int = 3600,
    job: Job = JOB,
    uid: int = 1001,
    snapshot: Snapshot = SNAPSHOT,
    hours: float = 24,
    rights: UserRights = UserRights(user="alice"),  # noqa: B008 (frozen)
) -> int:
    rules = ViewSettings(extend_max_hours=hours)
    return extended_limit(job, seconds, uid, "alice", snapshot, rights, rules, NOW)


def test_more_time() -> None:
    assert limit() == 7200
    assert limit(7 * 3600) == 8 * 3600
    waiting = JOB.model_copy(update={"state": JobState.PENDING, "started_at": None})
    assert limit(job=waiting) == 7200


def test_tasks_of_an_array_that_wait_under_one_number() -> None:
    waiting = JOB.model_copy(
        update={"state": JobState.PENDING, "started_at": None, "array_job_id": 1}
    )
    with pytest.raises(InputError, match=r"tasks 2-4%1 of an array wait.*when it runs"):
        limit(job=waiting.model_copy(update={"array_tasks": "2-4%1"}))
    assert limit(job=waiting.model_copy(update={"array_task_id": 2})) == 7200
    assert limit(job=JOB.model_copy(update={"array_job_id": 1, "array_task_id": 0})) == 7200


@pytest.mark.parametrize(
    ("kind", "words", "asked"),
    [
        (MissingError, "no such job", {"uid": 1002}),
        (DeniedError, "partition gpu allows 8 h", {"seconds": 7 * 3600 + 60}),
        (DeniedError, "this site allows 1 h 30 min", {"hours": 1.5}),
        (DeniedError, "no more time", {"hours": 0}),
        (InputError, "at least a minute", {"seconds": 0}),
        (InputError, "at least a minute", {"seconds": -3600}),
        (InputError, "has ended", {"job": JOB.model_copy(update={"state": JobState.COMPLETED})}),
        (InputError, "no time limit", {"job": JOB.model_copy(update={"limit_seconds": None})}),
    ],
)
def test_refusals(kind: type[CarmeError], words: str, asked: dict[str, object]) -> None:
    with pytest.raises(kind, match=words):
        limit(**asked)  # type: ignore[arg-type]


def test_a_reservation_ahead_is_respected() -> None:
    ahead = Reservation(name="maint", nodes=("gpu01",), starts_at=NOW + 3600, ends_at=NOW + 7200)
    busy = SNAPSHOT.model_copy(update={"reservations": (ahead,)})
    with pytest.raises(DeniedError, match="gpu01 is reserved"):
        limit(snapshot=busy)
    assert limit(600, snapshot=busy) == 4200
    own = JOB.model_copy(update={"reservation": "maint"})
    assert limit(job=own, snapshot=busy) == 7200
    elsewhere = busy.model_copy(
        update={"reservations": (ahead.model_copy(update={"nodes": ("gpu02",)}),)}
    )
    assert limit(snapshot=elsewhere) == 7200


RIGHTS = UserRights(
    user="alice",
    enforced=("limits",),
    default_account="lab",
    associations=(
        Association(account="lab", user="alice", qos=("normal", "short")),
        Association(account="slow", user="alice", limits=JobLimits(max_seconds=2 * 3600)),
    ),
    qos=(
        Qos(name="normal"),
        Qos(name="short", limits=JobLimits(max_seconds=5400)),
        Qos(
            name="long",
            flags=("PartitionTimeLimit",),
            limits=JobLimits(max_seconds=20 * 3600),
        ),
    ),
)


def test_limits_of_qos_and_account_count() -> None:
    short = JOB.model_copy(update={"account": "lab", "qos": "short"})
    with pytest.raises(DeniedError, match="QoS short allows 1 h 30 min in all"):
        limit(job=short, rights=RIGHTS)
    assert limit(1800, job=short, rights=RIGHTS) == 5400
    slow = JOB.model_copy(update={"account": "slow", "qos": "normal"})
    with pytest.raises(DeniedError, match="account slow allows 2 h"):
        limit(2 * 3600, job=slow, rights=RIGHTS)
    assert limit(3600, job=slow, rights=RIGHTS) == 7200


@pytest.mark.parametrize("holder", ["QoS normal", "account lab"])
def test_minutes_of_gpus_count(holder: str) -> None:
    minutes = JobLimits(minutes_per_job={"gres/gpu": 480, "billing": 1})
    own = Association(account="lab", user="alice", qos=("normal",))
    qos = Qos(name="normal")
    if holder.startswith("QoS"):
        qos = qos.model_copy(update={"limits": minutes})
    else:
        own = own.model_copy(update={"limits": minutes})
    rights = RIGHTS.model_copy(update={"associations": (own,), "qos": (qos,)})
    two = JOB.model_copy(update={"account": "lab", "qos": "normal", "gpus": {"a100": 2}})
    assert limit(3 * 3600, job=two, rights=rights) == 4 * 3600
    with pytest.raises(DeniedError, match=rf"{holder} \(MaxTRESMins of gres/gpu\) allows 4 h"):
        limit(3 * 3600 + 60, job=two, rights=rights)
    without = two.model_copy(update={"gpus": {}})
    assert limit(6 * 3600, job=without, rights=rights) == 7 * 3600


def test_a_qos_may_go_beyond_the_partition() -> None:
    long = JOB.model_copy(update={"account": "lab", "qos": "long"})
    assert limit(10 * 3600, job=long, rights=RIGHTS) == 11 * 3600
    with pytest.raises(DeniedError, match="QoS long allows 20 h"):
        limit(20 * 3600, job=long, rights=RIGHTS)


def test_limits_that_slurm_does_not_enforce_do_not_count() -> None:
    lax = RIGHTS.model_copy(update={"enforced": ("associations",)})
    short = JOB.model_copy(update={"account": "lab", "qos": "short"})
    assert limit(job=short, rights=lax) == 7200
