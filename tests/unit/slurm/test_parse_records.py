"""JSON of slurmrestd and squeue: plain values of v0.0.38, wrapped ones of later releases."""

from typing import Any

import pytest

from carme.slurm.parse import (
    answer_errors,
    answer_version,
    parse_json_jobs,
    parse_json_nodes,
    parse_json_partitions,
    parse_json_reservations,
)
from carme.slurm.states import JobState, NodeState
from support.slurm_samples import NEW_JOB, OLD_JOB, wrapped


def test_a_job_is_the_same_in_old_and_new_json() -> None:
    (old,) = parse_json_jobs({"jobs": [OLD_JOB]})
    (new,) = parse_json_jobs({"jobs": [NEW_JOB]})
    assert old == new
    assert (old.id, old.name, old.user, old.uid) == (4, "none", "slb", 21002)
    assert (old.state, old.reason) == (JobState.RUNNING, "")
    assert old.nodes == ("gpu01", "gpu02")
    assert old.gpus == {"a100": 1, "t4": 2}
    assert old.gpu_indices == {"gpu01": (3,), "gpu02": (0, 2)}
    assert (old.memory_bytes, old.limit_seconds) == (1000 << 20, 3600)
    assert (old.started_at, old.ends_at, old.expected_start_at) == (110, 3710, None)
    assert (old.exit_code, old.exit_signal, old.array_job_id) == (3, 0, None)


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"tres_req_str": "gres/gpu=4", "tres_per_node": "gres:gpu:a100:2"}, {"a100": 4}),
        ({"tres_req_str": "cpu=1", "tres_per_job": "gres/gpu:6"}, {"": 6}),
        ({"tres_req_str": "cpu=1", "tres_per_task": "gres/gpu:h100:1"}, {"h100": 2}),
        ({"tres_req_str": "gres/gpu=5", "tres_per_node": "gpu:a100:2"}, {"": 5}),
        ({"tres_req_str": "gres/gpu=4,gres/gpu:a100=4"}, {"a100": 4}),
        ({"tres_req_str": "cpu=1"}, {}),
    ],
)
def test_gpus_of_a_waiting_job(fields: dict[str, Any], gpus: dict[str, int]) -> None:
    raw = {**OLD_JOB, "job_state": "PENDING", "gres_detail": [], "tres_alloc_str": "", **fields}
    (job,) = parse_json_jobs({"jobs": [raw]})
    assert job.gpus == gpus
    assert (job.started_at, job.ends_at, job.expected_start_at) == (None, None, 110)


def test_array_and_limits() -> None:
    raw = {**OLD_JOB, "array_job_id": 5, "array_task_id": 0, "time_limit": wrapped(None, True)}
    (job,) = parse_json_jobs({"jobs": [raw]})
    assert (job.array_job_id, job.array_task_id, job.limit_seconds) == (5, 0, None)


def test_nodes() -> None:
    old = {
        "name": "gpu01",
        "state": "allocated",
        "state_flags": ["DRAIN"],
        "reason": "ECC",
        "address": "10.0.0.1",
        "partitions": ["gpu"],
        "features": "fast,big",
        "cpus": 8,
        "alloc_cpus": 3,
        "real_memory": 8000,
        "alloc_memory": 2000,
        "gres": "gpu:a100:4",
        "gres_used": "gpu:a100:1(IDX:2)",
        "slurmd_version": "22.05.8",
    }
    new = {k: v for k, v in old.items() if k not in {"state_flags", "slurmd_version"}}
    new |= {"state": ["MIXED", "DRAIN"], "features": ["fast", "big"], "version": "22.05.8"}
    (first,) = parse_json_nodes({"nodes": [old]})
    (second,) = parse_json_nodes({"nodes": [new]})
    assert first.model_copy(update={"state_text": ""}) == second.model_copy(
        update={"state_text": ""}
    )
    assert (first.state, first.flags) == (NodeState.MIXED, ("DRAIN",))
    assert (first.gpus_used, first.gpu_indices_used) == ({"a100": 1}, {"a100": (2,)})


def test_partitions() -> None:
    old = {
        "name": "gpu",
        "flags": ["default"],
        "nodes": "gpu[01-02]",
        "state": "UP",
        "total_cpus": 16,
        "total_nodes": 2,
        "max_time_limit": 480,
        "default_time_limit": None,
        "maximum_cpus_per_node": -1,
        "default_memory_per_cpu": 500,
        "allowed_accounts": "lab",
        "tres": "gres/gpu:a100=8",
    }
    new = {
        "name": "gpu",
        "nodes": {"configured": "gpu[01-02]", "total": 2},
        "cpus": {"total": 16},
        "partition": {"state": ["UP"]},
        "maximums": {"time": wrapped(480), "cpus_per_node": wrapped(None, True)},
        "defaults": {"time": wrapped(None), "partition_memory_per_cpu": wrapped(500)},
        "accounts": {"allowed": "lab"},
        "tres": {"configured": "gres/gpu:a100=8"},
    }
    (first,) = parse_json_partitions({"partitions": [old]})
    (second,) = parse_json_partitions({"partitions": [new]})
    assert first == second.model_copy(update={"default": True})
    assert (first.max_seconds, first.gpus, first.allow_accounts) == (28800, {"a100": 8}, ("lab",))


def test_a_partition_limit_of_zero_is_none() -> None:
    limits = {"defaults": {"time": wrapped(0)}, "maximums": {"time": wrapped(0), "nodes": 0}}
    (partition,) = parse_json_partitions({"partitions": [{"name": "gpu", **limits}]})
    assert (partition.default_seconds, partition.max_seconds) == (None, None)
    assert partition.max_nodes is None


def test_reservations() -> None:
    raw = {
        "name": "m",
        "start_time": wrapped(5),
        "end_time": 9,
        "node_list": "n[1-2]",
        "users": "a,a",
    }
    (reservation,) = parse_json_reservations(
        {"reservations": [{**raw, "flags": ["MAINT", "FLEX"]}]}
    )
    assert (reservation.starts_at, reservation.ends_at, reservation.nodes) == (5, 9, ("n1", "n2"))
    assert (reservation.users, reservation.flags, reservation.maintenance) == (
        ("a",),
        ("FLEX", "MAINT"),
        True,
    )


def test_meta() -> None:
    assert answer_version({"meta": {"Slurm": {"release": "22.05.8"}}}) == "22.05.8"
    assert answer_version({"meta": {"slurm": {"release": "24.11.5"}}}) == "24.11.5"
    assert answer_version([]) == ""
    assert answer_errors({"errors": [{"error": "a"}, {"description": "b"}]}) == "a; b"
    assert answer_errors({"errors": []}) == ""
