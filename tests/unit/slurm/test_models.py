import pytest
from pydantic import ValidationError

from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import Job, Node, Partition
from carme.slurm.snapshot import QueueLoad, Snapshot, queue_load
from carme.slurm.states import JobState, NodeState

GPU1 = Node(
    name="gpu01",
    state=NodeState.MIXED,
    partitions=("gpu",),
    cpus=8,
    cpus_used=2,
    memory_bytes=1000,
    memory_used_bytes=300,
    gpus={"a100": 4},
    gpus_used={"a100": 1},
)
GPU2 = GPU1.model_copy(
    update={"name": "gpu02", "gpus_used": {"a100": 2}, "partitions": ("gpu", "all")}
)
DRAINED = GPU1.model_copy(update={"name": "gpu03", "flags": ("DRAIN",), "gpus_used": {}})
FULL = GPU1.model_copy(update={"name": "gpu04", "cpus_used": 8, "gpus_used": {}})
CPU = Node(name="cpu01", state=NodeState.IDLE, partitions=("cpu",), cpus=4)


def job(job_id: int, state: JobState, priority: int = 0, **fields: object) -> Job:
    return Job(id=job_id, state=state, priority=priority, partition="gpu", **fields)  # type: ignore[arg-type]


SNAPSHOT = Snapshot(
    taken_at=1,
    partitions=(Partition(name="cpu"), Partition(name="gpu", default=True)),
    nodes=(GPU1, GPU2, DRAINED, FULL, CPU),
    jobs=(
        job(1, JobState.RUNNING),
        job(2, JobState.PENDING, 10, gpus={"a100": 2}),
        job(3, JobState.PENDING, 30),
        job(4, JobState.PENDING, 30),
        job(5, JobState.COMPLETED),
    ),
)


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        GPU1.name = "other"  # type: ignore[misc]


def test_free() -> None:
    assert (GPU1.cpus_free, GPU1.memory_free_bytes, GPU1.gpus_free) == (6, 700, {"a100": 3})
    assert DRAINED.gpus_free == {"a100": 0}
    assert not DRAINED.open
    assert not GPU1.model_copy(update={"flags": ("RESERVED",)}).open
    assert GPU1.model_copy(update={"flags": ("PLANNED",)}).open
    assert FULL.gpus_free == {"a100": 0}, "no CPU is left to drive its GPUs"


def test_totals() -> None:
    assert SNAPSHOT.gpus_free("gpu") == {"a100": 5}
    assert SNAPSHOT.gpus_free("all") == {"a100": 2}
    assert SNAPSHOT.gpus_total() == {"a100": 16}
    assert SNAPSHOT.largest_free_block() == {"a100": 3}
    assert SNAPSHOT.gpus_free("cpu") == {}


def test_lookups() -> None:
    assert SNAPSHOT.partition() == SNAPSHOT.partition("gpu")
    assert SNAPSHOT.partition("nope") is None
    assert SNAPSHOT.job(2) is not None
    assert SNAPSHOT.job(9) is None


def test_queue_position() -> None:
    assert [SNAPSHOT.queue_position(n) for n in (3, 4, 2, 1, 9)] == [1, 2, 3, None, None]


def test_queue_load() -> None:
    assert queue_load(SNAPSHOT.jobs) == {"gpu": QueueLoad(running=1, waiting=3, gpus_waiting=2)}


def test_json_round_trip_and_newer_fields() -> None:
    text = SNAPSHOT.model_dump_json()
    assert Snapshot.model_validate_json(text) == SNAPSHOT
    assert Node.model_validate({"name": "a", "of_a_newer_carme": 1}).name == "a"


@pytest.mark.parametrize(
    "wrong", [{"partition": "a b"}, {"partition": "x;y"}, {"nodes": 0}, {"gpus": -1}, {"qos": "\n"}]
)
def test_a_request_is_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ResourceRequest.model_validate({"partition": "gpu", **wrong})
