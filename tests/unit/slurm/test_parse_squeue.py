from carme.slurm.parse import parse_squeue
from carme.slurm.states import JobState
from support.slurm_samples import PENDING, RUNNING, SEPARATOR, printed


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
    assert (pending.expected_start_at, pending.started_at, pending.ends_at) == (
        1794873600,
        None,
        None,
    )
    assert (pending.limit_seconds, pending.name) == (None, "none")


def test_a_row_that_is_cut_short_is_left_out() -> None:
    text = printed(RUNNING, PENDING)
    assert len(parse_squeue(text[: len(text) - 40], SEPARATOR)) == 1
    assert parse_squeue("", SEPARATOR) == ()
