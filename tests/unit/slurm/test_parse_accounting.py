from carme.slurm.parse import parse_sacct, parse_slurmdb_jobs
from carme.slurm.states import JobState

HEADER = "JobIDRaw|JobID|JobName|User|State|NodeList|NNodes|NCPUS|AllocTRES|ReqTRES|Start|End|TimelimitRaw|ExitCode|TotalCPU|MaxRSS|ElapsedRaw"
ROWS = """
12|5_1|train|sla|COMPLETED|gpu[01-02]|2|4|cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2G,node=2||2026-11-16T03:05:07|2026-11-16T03:06:07|60|0:0|01:30.500||60
12.batch|5_1.batch|batch||COMPLETED|gpu01|1|2|cpu=2||2026-11-16T03:05:07|2026-11-16T03:06:07||0:0|01:30.500|1500K|60
12.0|5_1.0|bash||COMPLETED|gpu01|1|2|cpu=2||2026-11-16T03:05:07|2026-11-16T03:06:07||0:0|00:00.500|3M|60
13|13|two
lines|slb|CANCELLED by 21002|None assigned|1|1||cpu=1,mem=500M,gres/gpu=3|Unknown|2026-11-16T03:06:07|UNLIMITED|0:15|00:00:00||0
14|14|bad|name|slb|FAILED|n1|1|1||cpu=1|Unknown|Unknown|60|1:0|00:00:00||0
15|15|next|slb|RUNNING|n1|1|1|cpu=1|cpu=1|2026-11-16T03:05:07|Unknown|60|0:0|00:00:00||7
""".strip()


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
        "steps": [{"tres": {"requested": {"max": [{"type": "mem", "name": None, "count": 3 << 20}]}}}],
    }
    (job,) = parse_slurmdb_jobs({"jobs": [raw]})
    assert (job.id, job.array_job_id, job.array_task_id) == (12, 5, 1)
    assert (job.cpus, job.memory_bytes, job.gpus) == (4, 2 << 30, {"a100": 2})
    assert (job.state, job.ended_at, job.max_rss_bytes) == (JobState.COMPLETED, 160, 3 << 20)
    (newer,) = parse_slurmdb_jobs({"jobs": [{**raw, "state": {"current": ["COMPLETED"]}}]})
    assert newer.state is JobState.COMPLETED
