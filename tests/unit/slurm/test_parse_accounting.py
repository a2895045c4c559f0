from carme.slurm.parse import parse_sacct, parse_slurmdb_jobs
from carme.slurm.states import JobState
from support.slurm_samples import HEADER, ROWS


def test_sacct() -> None:
    first, second, third = parse_sacct(f"{HEADER}\n{ROWS}\n")
    assert (first.id, first.array_job_id, first.array_task_id) == (12, 5, 1)
    assert (first.nodes, first.gpus) == (("gpu01", "gpu02"), {"a100": 2})
    assert (first.memory_bytes, first.limit_seconds) == (2 << 30, 3600)
    assert (first.started_at, first.ended_at, first.elapsed_seconds) == (1794798307, 1794798367, 60)
    assert (first.cpu_seconds, first.max_rss_bytes) == (90, 3 << 20)
    assert (second.name, second.state) == ("two\nlines", JobState.CANCELLED)
    assert second.state_text == "CANCELLED by 21002"
    assert (second.exit_signal, second.gpus, second.nodes) == (15, {"": 3}, ())
    assert (second.limit_seconds, second.started_at) == (None, None)
    assert (third.id, third.state, third.ended_at) == (15, JobState.RUNNING, None)


def test_sacct_of_nothing() -> None:
    assert parse_sacct(HEADER) == parse_sacct("") == parse_sacct("sacct: error") == ()


def test_slurmdb() -> None:
    tres = [
        {"type": "cpu", "name": None, "count": 4},
        {"type": "mem", "name": None, "count": 2048},
        {"type": "gres", "name": "gpu", "count": 2},
        {"type": "gres", "name": "gpu:a100", "count": 2},
        {"type": "energy", "name": None, "count": None},
    ]
    raw = {
        "job_id": 12,
        "name": "train",
        "user": "sla",
        "array": {"job_id": 5, "task_id": 1},
        "state": {"current": "COMPLETED", "reason": "None"},
        "time": {"start": 100, "end": 160, "elapsed": 60, "limit": 60, "total": {"seconds": 90}},
        "exit_code": {"status": "SUCCESS", "return_code": 0},
        "nodes": "gpu[01-02]",
        "tres": {"allocated": tres, "requested": []},
        "steps": [
            {"tres": {"requested": {"max": [{"type": "mem", "name": None, "count": 3 << 20}]}}}
        ],
    }
    (job,) = parse_slurmdb_jobs({"jobs": [raw]})
    assert (job.id, job.array_job_id, job.array_task_id) == (12, 5, 1)
    assert (job.cpus, job.memory_bytes, job.gpus) == (4, 2 << 30, {"a100": 2})
    assert (job.state, job.ended_at, job.max_rss_bytes) == (JobState.COMPLETED, 160, 3 << 20)
    (newer,) = parse_slurmdb_jobs({"jobs": [{**raw, "state": {"current": ["COMPLETED"]}}]})
    assert newer.state is JobState.COMPLETED
