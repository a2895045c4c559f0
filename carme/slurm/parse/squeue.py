"""`squeue -O` for builds of Slurm without JSON.

Fields end with a separator that the caller draws at random for each call, so that no job name or
comment can contain it, and lines may break anywhere.
"""

from collections.abc import Iterator, Sequence

from carme.slurm.gres import memory_of_tres, parse_tres
from carme.slurm.models import Job
from carme.slurm.parse.gpus import GpuRequestFields, job_gpus
from carme.slurm.parse.values import clean, hosts, integer, seconds, unix_time
from carme.slurm.states import parse_job_state

SQUEUE_FIELDS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "Name",
    "UserName",
    "UserID",
    "Account",
    "QOS",
    "Partition",
    "State",
    "Reason",
    "NodeList",
    "NumNodes",
    "NumCPUs",
    "NumTasks",
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "PriorityLong",
    "Dependency",
    "Reservation",
    "Feature",
    "WorkDir",
    "Comment",
    "exit_code",
    "RestartCnt",
)


def parse_squeue(text: str, separator: str) -> tuple[Job, ...]:
    """The jobs that `squeue --noheader -O FIELD:SEPARATOR,…` printed, SQUEUE_FIELDS in order."""
    jobs = (_job(dict(zip(SQUEUE_FIELDS, row, strict=True))) for row in _rows(text, separator))
    return tuple(job for job in jobs if job)


def _rows(text: str, separator: str) -> Iterator[Sequence[str]]:
    fields = text.split(separator)
    width = len(SQUEUE_FIELDS)
    for start in range(0, len(fields) - width + 1, width):
        row = fields[start : start + width]
        # The line break after the last field of a row stands before the first of the next.
        yield [row[0].strip(), *row[1:]]


def _job(raw: dict[str, str]) -> Job | None:
    job_id = integer(raw["JobID"])
    if job_id is None:
        return None
    state = parse_job_state(raw["State"])
    tres = parse_tres(raw["tres-alloc"])
    node_count = integer(raw["NumNodes"]) or 0
    task, tasks = integer(raw["ArrayTaskID"]), clean(raw["ArrayTaskID"])
    request = GpuRequestFields(
        clean(raw["tres-per-job"]),
        clean(raw["tres-per-node"]),
        clean(raw["tres-per-task"]),
        node_count,
        integer(raw["NumTasks"]) or 1,
    )
    in_array = bool(tasks)
    start, end = unix_time(raw["StartTime"]), unix_time(raw["EndTime"])
    status = integer(raw["exit_code"])
    return Job(
        id=job_id,
        array_job_id=integer(raw["ArrayJobID"]) if in_array else None,
        array_task_id=task,
        array_tasks=tasks if in_array and task is None else "",
        name=raw["Name"],
        user=raw["UserName"],
        uid=integer(raw["UserID"]),
        account=clean(raw["Account"]),
        qos=clean(raw["QOS"]),
        partition=raw["Partition"],
        state=state,
        state_text=raw["State"],
        reason=clean(raw["Reason"]),
        nodes=hosts(raw["NodeList"]),
        node_count=node_count,
        cpus=integer(raw["NumCPUs"]) or 0,
        memory_bytes=memory_of_tres(tres),
        gpus=job_gpus((), raw["tres-alloc"], request),
        submitted_at=unix_time(raw["SubmitTime"]),
        eligible_at=unix_time(raw["EligibleTime"]),
        started_at=None if state.waiting else start,
        ends_at=None if state.waiting else end,
        expected_start_at=start if state.waiting else None,
        limit_seconds=seconds(raw["TimeLimit"]),
        priority=integer(raw["PriorityLong"]),
        dependency=clean(raw["Dependency"]),
        reservation=clean(raw["Reservation"]),
        features=clean(raw["Feature"]),
        work_dir=raw["WorkDir"],
        comment="" if raw["Comment"] == "(null)" else raw["Comment"],
        exit_code=None if status is None else status >> 8,
        exit_signal=None if status is None else status & 0x7F,
        restarts=integer(raw["RestartCnt"]) or 0,
    )
