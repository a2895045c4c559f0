from carme.slurm.parse import SQUEUE_FIELDS, parse_squeue
from carme.slurm.states import JobState

SEPARATOR = "@5f3a@"
RUNNING = {
    "JobID": "12",
    "ArrayJobID": "5",
    "ArrayTaskID": "1",
    "Name": "evil UserId=root(0)\nJobId=13 | \x1f",
    "UserName": "sla",
    "UserID": "21001",
    "Account": "lab",
    "QOS": "normal",
    "Partition": "gpu",
    "State": "RUNNING",
    "Reason": "None",
    "NodeList": "gpu[01-02]",
    "NumNodes": "2",
    "NumCPUs": "4",
    "NumTasks": "2",
    "tres-alloc": "cpu=4,mem=2000M,node=2,billing=4,gres/gpu=4",
    "tres-per-job": "N/A",
    "tres-per-node": "gres:gpu:a100:2",
    "tres-per-task": "N/A",
    "SubmitTime": "2026-11-16T03:05:06",
    "EligibleTime": "2026-11-16T03:05:07",
    "StartTime": "2026-11-16T03:05:08",
    "EndTime": "2026-11-16T04:05:08",
    "TimeLimit": "1:00:00",
    "PriorityLong": "4294901755",
    "Dependency": "(null)",
    "Reservation": "(null)",
    "Feature": "(null)",
    "WorkDir": "/home/sla",
    "Comment": "(null)",
    "exit_code": "768",
    "RestartCnt": "1",
}
PENDING = {
    **RUNNING,
    "JobID": "5",
    "ArrayTaskID": "2-4%1",
    "Name": "none",
    "State": "PENDING",
    "Reason": "JobArrayTaskLimit",
    "NodeList": "",
    "StartTime": "2026-11-17T00:00:00",
    "EndTime": "N/A",
    "TimeLimit": "UNLIMITED",
    "ArrayJobID": "5",
}


def printed(*jobs: dict[str, str]) -> str:
    rows = ("".join(job[field] + SEPARATOR for field in SQUEUE_FIELDS) for job in jobs)
    return "".join(f"{row}\n" for row in rows)


def test_jobs() -> None:
    running, pending = parse_squeue(printed(RUNNING, PENDING), SEPARATOR)
    assert (running.id, running.array_job_id, running.array_task_id) == (12, 5, 1)
    assert (running.name, running.user, running.uid) == (RUNNING["Name"], "sla", 21001)
    assert (running.state, running.nodes) == (JobState.RUNNING, ("gpu01", "gpu02"))
    assert running.gpus == {"a100": 4}, "the request names the type that the TRES does not"
    assert (running.memory_bytes, running.cpus) == (2000 << 20, 4)
    assert (running.started_at, running.ends_at) == (1794798308, 1794801908)
    assert (running.limit_seconds, running.exit_code, running.exit_signal) == (3600, 3, 0)
    assert (running.comment, running.reason, running.restarts) == ("", "", 1)
    assert (pending.array_tasks, pending.array_task_id) == ("2-4%1", None)
    assert (pending.expected_start_at, pending.started_at, pending.ends_at) == (1794873600, None, None)
    assert (pending.limit_seconds, pending.name) == (None, "none")


def test_a_row_that_is_cut_short_is_left_out() -> None:
    text = printed(RUNNING, PENDING)
    assert len(parse_squeue(text[: len(text) - 40], SEPARATOR)) == 1
    assert parse_squeue("", SEPARATOR) == ()
