from hypothesis import given
from hypothesis import strategies as st

from carme.slurm.models import Job, Node, Partition, Reservation
from carme.slurm.snapshot import QueueLoad, Snapshot

SNAPSHOT = Snapshot(
    taken_at=1,
    partitions=(Partition(name="gpu"), Partition(name="secret", hidden=True)),
    nodes=(Node(name="gpu01"),),
    jobs=(
        Job(id=1, user="alice", uid=1001, name="mine", account="lab"),
        Job(id=2, user="bob", uid=1002, name="thesis", account="project-x", comment="hush"),
        # A name that is reused, or forged, does not make a job somebody's.
        Job(id=3, user="alice", uid=1002, name="forged"),
        Job(id=4, user="alice", name="without a uid"),
    ),
    reservations=(
        Reservation(name="r", users=("alice", "bob"), accounts=("project-x",), groups=("g",)),
    ),
    load={"gpu": QueueLoad(running=2), "secret": QueueLoad(running=1)},
)


def test_a_user_sees_the_cluster_and_own_jobs() -> None:
    seen = SNAPSHOT.visible_to("alice", 1001)
    assert [job.id for job in seen.jobs] == [1, 4]
    assert not seen.complete
    assert seen.nodes == SNAPSHOT.nodes
    assert [partition.name for partition in seen.partitions] == ["gpu"]
    assert seen.load == {"gpu": QueueLoad(running=2)}


def test_nothing_of_others_is_left() -> None:
    text = SNAPSHOT.visible_to("alice", 1001).model_dump_json()
    for word in ("bob", "thesis", "project-x", "hush", "forged", "1002", "secret"):
        assert word not in text


def test_a_stranger_without_a_name_owns_nothing() -> None:
    seen = SNAPSHOT.visible_to("", 4242)
    assert seen.jobs == ()
    assert not Job(id=9, user="").is_owned_by("", 4242)


@given(st.lists(st.tuples(st.integers(1000, 1004), st.text(max_size=5)), max_size=8))
def test_only_own_jobs_whatever_their_names(owners: list[tuple[int, str]]) -> None:
    jobs = tuple(Job(id=i, uid=uid, user=user) for i, (uid, user) in enumerate(owners, 1))
    seen = Snapshot(taken_at=0, jobs=jobs).visible_to("alice", 1001)
    assert all(job.uid == 1001 for job in seen.jobs)
