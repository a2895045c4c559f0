"""The adapter's tables, on objects with pyslurm's attribute names."""

from enum import Flag
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

from carme.errors import UnavailableError
from carme.slurm.command_runner import SlurmCommandRunner
from carme.slurm.pyslurm_client import PyslurmClient, unusable
from carme.slurm.states import JobState, NodeState


class Flags(Flag):
    MAINTENANCE = 1
    FLEX = 2


class RPCError(Exception):
    pass


NODE = SimpleNamespace(
    name="gpu01",
    state="MIXED+DRAIN",
    reason="ECC",
    address="10.0.0.1",
    partitions=["gpu"],
    available_features=["fast"],
    total_cpus=8,
    allocated_cpus=2,
    real_memory=8000,
    allocated_memory=2000,
    slurm_version="25.11.1",
    configured_gres={"gpu:a100": 4},
    allocated_gres={"gpu": 2, "gpu:a100": 2},
)
JOB = SimpleNamespace(
    id=7,
    name="train",
    user_name="alice",
    user_id=1001,
    state="RUNNING",
    state_reason="None",
    partition="gpu",
    allocated_nodes="gpu[01-02]",
    num_nodes=2,
    cpus=4,
    memory_per_node=1000,
    memory_per_cpu=None,
    time_limit=60,
    start_time=100,
    end_time=3700,
    exit_code=0,
    exit_code_signal=None,
    gres={"gpu": SimpleNamespace(count=3)},
    get_resource_layout_per_node=lambda: {
        "gpu01": {"gres": {"gpu:a100": {"count": 1, "indexes": "3"}}},
        "gpu02": {"gres": {"gpu:a100": {"count": 2, "indexes": "0-1"}}},
    },
)
PARTITION = SimpleNamespace(
    name="gpu",
    state="UP",
    nodes="gpu[01-02]",
    total_nodes=2,
    max_time="UNLIMITED",
    default_time=60,
    is_default=True,
    is_hidden=False,
    allowed_accounts=["ALL"],
    allowed_groups=["lab"],
)
RESERVATION = SimpleNamespace(
    name="m", start_time=5, end_time=9, nodes="gpu01", flags=Flags.MAINTENANCE, users=["a"]
)


def collection(*items: Any) -> SimpleNamespace:
    return SimpleNamespace(load=lambda: dict(enumerate(items)))


def client(**changed: Any) -> PyslurmClient:
    parts = {
        "Nodes": collection(NODE),
        "Jobs": collection(JOB),
        "Partitions": collection(PARTITION),
        "Reservations": collection(RESERVATION),
        "RPCError": RPCError,
    }
    module = SimpleNamespace(**{**parts, **changed})
    return PyslurmClient(SlurmCommandRunner(1), module, "25.11.1", 0)


def test_nodes() -> None:
    (node,) = client().nodes()
    assert (node.name, node.state, node.flags) == ("gpu01", NodeState.MIXED, ("DRAIN",))
    assert (node.cpus, node.cpus_used, node.memory_bytes) == (8, 2, 8000 << 20)
    assert (node.gpus, node.gpus_used) == ({"a100": 4}, {"a100": 2})


def test_jobs() -> None:
    (job,) = client().jobs()
    assert (job.id, job.uid, job.state) == (7, 1001, JobState.RUNNING)
    assert (job.gpus, job.gpu_indices) == ({"a100": 3}, {"gpu01": (3,), "gpu02": (0, 1)})
    assert (job.memory_bytes, job.limit_seconds) == (2000 << 20, 3600)
    waiting = SimpleNamespace(**{**vars(JOB), "state": "PENDING", "allocated_nodes": None})
    waiting.get_resource_layout_per_node = dict
    (job,) = client(Jobs=collection(waiting)).jobs()
    assert (job.state, job.gpus, job.started_at) == (JobState.PENDING, {"": 3}, None)


def test_partitions_and_reservations() -> None:
    (partition,) = client().partitions()
    assert (partition.default, partition.max_seconds, partition.default_seconds) == (
        True,
        None,
        3600,
    )
    assert (partition.allow_accounts, partition.allow_groups) == ((), ("lab",))
    (reservation,) = client().reservations()
    assert (reservation.maintenance, reservation.nodes, reservation.users) == (
        True,
        ("gpu01",),
        ("a",),
    )


def test_errors() -> None:
    def fail(*_: object) -> None:
        raise RPCError("Unable to contact slurm controller (connect failure)")

    with pytest.raises(UnavailableError):
        client(Nodes=SimpleNamespace(load=fail)).nodes()


def test_used_only_when_it_fits() -> None:
    def absent(_: str) -> str:
        raise PackageNotFoundError

    assert "not installed" in unusable("22.05.8", absent)
    assert "not for Slurm 22.05.8" in unusable("22.05.8", lambda _: "25.11.2")
    assert unusable("25.11.4", lambda _: "25.11.2") == ""
