"""Answers of real clusters and of Slurm 24.05 and 24.11, read whole."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from carme.slurm import parse
from carme.slurm.gres import gpus_of_gres, parse_gres
from carme.slurm.models import Job, Node
from carme.slurm.states import JobState, NodeState, parse_node_state

pytestmark = pytest.mark.data
RELEASES = ("24.05", "24.11")


def answer(data: Path, release: str, name: str) -> Any:
    return json.loads((data / "slurmrestd" / release / f"slurm-{name}.json").read_bytes())


def read_job(data: Path, release: str, name: str) -> Job:
    (job,) = parse.parse_json_jobs(answer(data, release, f"job-{name}"))
    return job


def read_node(data: Path, release: str, name: str) -> Node:
    (node,) = parse.parse_json_nodes(answer(data, release, f"node-{name}"))
    return node


@pytest.mark.parametrize("release", RELEASES)
def test_every_answer_is_read_whole(data: Path, release: str) -> None:
    readers = {
        "jobs": parse.parse_json_jobs,
        "nodes": parse.parse_json_nodes,
        "partitions": parse.parse_json_partitions,
        "reservations": parse.parse_json_reservations,
    }
    files = sorted((data / "slurmrestd" / release).glob("*.json"))
    assert len(files) > 20
    for path in files:
        raw = json.loads(path.read_bytes())
        assert parse.answer_version(raw).startswith(release) or "meta" not in raw, path.name
        for key, read in readers.items():
            if key in raw:
                models = read(raw)
                assert len(models) == len(raw[key]), path.name
                for model in models:
                    state = getattr(model, "state", None)
                    assert state not in (JobState.UNKNOWN, NodeState.UNKNOWN), path.name


@pytest.mark.parametrize(
    ("release", "name", "state", "code", "signal"),
    [
        ("24.05", "completed", JobState.COMPLETED, 0, 0),
        ("24.05", "failed", JobState.FAILED, 1, 0),
        ("24.05", "timeout", JobState.TIMEOUT, 0, 15),
        ("24.11", "pending", JobState.PENDING, 0, 0),
        ("24.11", "running", JobState.RUNNING, 0, 0),
        ("24.11", "timeout", JobState.TIMEOUT, 0, 15),
    ],
)
def test_job_states(
    data: Path, release: str, name: str, state: JobState, code: int, signal: int
) -> None:
    job = read_job(data, release, name)
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)


@pytest.mark.parametrize(
    ("release", "name", "gpus", "indices"),
    [
        ("24.05", "gpus-running", {"h100": 4}, {"gpu1": (0, 1, 2, 3)}),
        ("24.05", "gpus-pending", {"": 4}, {}),
        ("24.05", "gpus-completed", {"": 4}, {}),
        ("24.05", "gpus-gres", {"h100": 4}, {"gpu1": (0, 1, 2, 3)}),
        ("24.05", "gpus-per-task", {"h100": 4}, {"gpu1": (0, 1, 2, 3)}),
        ("24.05", "gpus-multi-types", {"h100": 1}, {"gpu1": (0,)}),
        ("24.11", "gpus-running", {"h100": 2, "h200": 4}, {"ia1": (0, 1, 2, 3, 4, 5)}),
        ("24.11", "gpus-pending", {"": 6}, {}),
        ("24.11", "gpus-type", {"h100": 1}, {"ia1": (0,)}),
        ("24.11", "gpus-multi-types", {"h100": 1, "h200": 1}, {"ia1": (0, 2)}),
        ("24.11", "gpus-per-socket", {"h100": 2}, {"ia1": (0, 1)}),
        ("24.11", "gpus-per-task", {"h100": 2, "h200": 2}, {"ia1": (0, 1, 2, 3)}),
    ],
)
def test_gpu_jobs(
    data: Path, release: str, name: str, gpus: dict[str, int], indices: dict[str, tuple[int, ...]]
) -> None:
    job = read_job(data, release, name)
    assert (job.gpus, job.gpu_indices) == (gpus, indices)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["gpus-multi-nodes", "gpus-per-node"])
def test_gpu_jobs_on_several_nodes(data: Path, release: str, name: str) -> None:
    job = read_job(data, release, name)
    assert len(job.nodes) == job.node_count > 1
    assert set(job.gpu_indices) == set(job.nodes)
    assert job.gpu_count == sum(len(indices) for indices in job.gpu_indices.values())


def test_a_job_in_full(data: Path) -> None:
    job = read_job(data, "24.11", "gpus-running")
    assert (job.id, job.user, job.uid, job.account) == (6374, "vhartman", 10003, "biology")
    assert (job.partition, job.qos, job.nodes) == ("ia", "normal", ("ia1",))
    assert (job.cpus, job.memory_bytes, job.limit_seconds) == (1, 512 << 20, 60)
    assert (job.started_at, job.ends_at, job.priority) == (1762788927, 1762788987, 818)
    assert (job.array_job_id, job.work_dir) == (None, "/home/vhartman")


@pytest.mark.parametrize(
    ("release", "name", "state", "flags", "is_open"),
    [
        ("24.05", "allocated", NodeState.ALLOCATED, (), True),
        ("24.05", "down", NodeState.DOWN, (), False),
        ("24.05", "drain", NodeState.IDLE, ("DRAIN",), False),
        ("24.05", "draining", NodeState.MIXED, ("DRAIN",), False),
        ("24.05", "idle", NodeState.IDLE, (), True),
        ("24.11", "mixed", NodeState.MIXED, (), True),
        ("24.11", "planned", NodeState.IDLE, ("PLANNED",), True),
    ],
)
def test_nodes(
    data: Path, release: str, name: str, state: NodeState, flags: tuple[str, ...], is_open: bool
) -> None:
    node = read_node(data, release, name)
    assert (node.state, node.flags, node.open) == (state, flags, is_open)


def test_gpu_nodes(data: Path) -> None:
    idle, busy = (read_node(data, "24.11", f"with-gpus-model-{n}") for n in ("idle", "allocated"))
    assert idle.gpus == busy.gpus == {"h100": 2, "h200": 4}
    assert (idle.gpus_used, busy.gpus_used) == ({}, {"h100": 2, "h200": 4})
    assert idle.gpus_free == {"h100": 2, "h200": 4}
    assert busy.gpus_free == {"h100": 0, "h200": 0}
    assert read_node(data, "24.11", "without-gpu").gpus == {}


def test_whole_queue(data: Path) -> None:
    jobs = parse.parse_json_jobs(answer(data, "24.11", "jobs"))
    assert Counter(job.state for job in jobs)[JobState.RUNNING] == 7
    assert len({job.id for job in jobs}) == len(jobs) == 16


def test_partitions_and_reservations(data: Path) -> None:
    batch, *_ = parse.parse_json_partitions(answer(data, "24.05", "partitions"))
    assert (batch.name, batch.up, len(batch.nodes), batch.total_nodes) == ("batch", True, 512, 512)
    assert (batch.total_cpus, batch.max_seconds) == (25856, None)
    standard, _ = parse.parse_json_partitions(answer(data, "24.11", "partitions"))
    assert (standard.max_seconds, standard.default_memory_per_cpu_bytes) == (7200, 512 << 20)
    (reservation,) = parse.parse_json_reservations(answer(data, "24.05", "reservations"))
    assert (reservation.name, len(reservation.nodes), reservation.users) == (
        "training",
        512,
        ("bparks",),
    )
    assert (reservation.starts_at, reservation.ends_at, reservation.accounts) == (
        1748250553,
        1748336953,
        ("optic",),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_unknown_jobs(data: Path, release: str) -> None:
    for name in ("job-unfound", "job-archived"):
        raw = answer(data, release, name)
        assert parse.parse_json_jobs(raw) == ()
        assert parse.answer_errors(raw) == "Invalid job id specified"


def text(data: Path, name: str) -> str:
    return (data / "slurm-cli" / name).read_bytes().decode("utf-8", errors="replace")


def test_sacct_with_fields_over_several_lines(data: Path) -> None:
    first, second = parse.parse_sacct(text(data, "sample-sacct-multiple-multiline.txt"), "|#")
    assert (first.id, first.state, first.exit_code) == (201729, JobState.FAILED, 6)
    assert (len(first.nodes), first.node_count, first.gpus) == (128, 128, {"": 1024})
    assert (first.cpus, first.limit_seconds, first.elapsed_seconds) == (12288, 604800, 79396)
    assert (second.id, second.state, second.gpus) == (201844, JobState.REQUEUED, {"": 256})
    assert (len(second.nodes), second.work_dir) == (32, "/home/test_user/cluster/project")
    assert second.ended_at


def test_sacct_with_broken_bytes(data: Path) -> None:
    first, second = parse.parse_sacct(text(data, "sample-sacct-output-invalid-utf8.txt"))
    assert (first.id, first.exit_signal, first.gpus) == (3557891, 9, {"": 8})
    assert (first.memory_bytes, first.max_rss_bytes) == (64 << 30, 2176 << 10)
    assert (second.id, second.state, second.limit_seconds) == (3557892, JobState.TIMEOUT, 7200)


def test_sacct_of_steps_alone(data: Path) -> None:
    assert parse.parse_sacct(text(data, "sample-sacct-output.txt")) == ()


def test_sinfo_columns(data: Path) -> None:
    """Node states and GRES of a real cluster, through the parsers of single values."""
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in text(data, "sinfo-output-for-structured.txt").splitlines()
    ]
    assert len(rows) == 10
    for name, gres, used, _cpus, _alloc, word, _partition in rows:
        assert gpus_of_gres(parse_gres(gres)) == {"ampere": 8}, name
        assert gpus_of_gres(parse_gres(used))["ampere"] in (0, 8), name
        state, flags = parse_node_state(word)
        assert state is not NodeState.UNKNOWN, name
        assert flags == (("DRAIN", "MAINTENANCE") if word == "drained$" else ()), name


def test_controller_configuration_is_not_mistaken_for_records(data: Path) -> None:
    shown = text(data, "sample-scontrol-show-config-output.txt")
    assert parse.parse_nodes(shown) == parse.parse_partitions(shown) == ()
    assert parse.parse_reservations(shown) == ()
