"""The accounting database's jobs: `sacct --parsable2` and slurmrestd's `/slurmdb/…/jobs`."""

from collections.abc import Iterator, Mapping
from typing import Any

from carme.slurm.gres import gpus_of_tres, memory_of_tres, parse_tres
from carme.slurm.models import HistoryJob
from carme.slurm.parse.values import (
    clean,
    exit_pair,
    hosts,
    integer,
    json_map,
    json_number,
    json_objects,
    json_raw,
    json_text,
    json_time,
    json_words,
    memory,
    seconds,
    unix_time,
)
from carme.slurm.states import JobState, parse_job_state

# A field that cannot break over lines stands last: it tells where a record ends.
SACCT_FIELDS = (
    "JobIDRaw",
    "JobID",
    "JobName",
    "User",
    "Account",
    "QOS",
    "Partition",
    "State",
    "Reason",
    "NodeList",
    "NNodes",
    "NCPUS",
    "AllocTRES",
    "ReqTRES",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "TimelimitRaw",
    "ExitCode",
    "TotalCPU",
    "MaxRSS",
    "WorkDir",
    "ElapsedRaw",
)


def parse_sacct(text: str, separator: str = "|") -> tuple[HistoryJob, ...]:
    """The jobs in `sacct --parsable2` with its header line, whatever its columns.

    Steps give their memory to their job. A record may break over lines; one with a separator too
    many, which nobody can read, is left out.
    """
    jobs: dict[int, HistoryJob] = {}
    peaks: dict[int, int] = {}
    for raw in _records(text, separator):
        job_id, _, step = raw.get("JobIDRaw", raw.get("JobID", "")).partition(".")
        number = integer(job_id)
        if number is None:
            continue
        peak = memory(raw.get("MaxRSS", ""), default_unit="") or 0
        peaks[number] = max(peaks.get(number, 0), peak)
        if not step:
            jobs[number] = _sacct_job(number, raw)
    return tuple(
        job.model_copy(update={"max_rss_bytes": peaks[job.id] or None}) for job in jobs.values()
    )


def parse_slurmdb_jobs(answer: object) -> tuple[HistoryJob, ...]:
    """The jobs in an answer to `/slurmdb/…/jobs`."""
    jobs = (raw for raw in json_objects(answer, "jobs") if json_number(raw, "job_id"))
    return tuple(_slurmdb_job(raw) for raw in jobs)


def _records(text: str, separator: str) -> Iterator[dict[str, str]]:
    lines = text.split("\n")
    header = lines[0].rstrip("\r").split(separator)
    pending = ""
    for line in lines[1:]:
        pending = f"{pending}\n{line}" if pending else line
        count = pending.count(separator) + 1
        if count > len(header):
            # The lines before did not belong to this one.
            pending, count = line, line.count(separator) + 1
        if count == len(header) > 1:
            yield dict(zip(header, pending.split(separator), strict=True))
            pending = ""
        elif count > len(header):
            pending = ""


def _sacct_job(job_id: int, raw: Mapping[str, str]) -> HistoryJob:
    def get(key: str) -> str:
        return raw.get(key, "")

    state = parse_job_state(get("State"))
    tres = parse_tres(get("AllocTRES") or get("ReqTRES"))
    array, _, task = get("JobID").partition("_")
    minutes = integer(get("TimelimitRaw"))
    code, signal = exit_pair(get("ExitCode"))
    cpu_text = get("TotalCPU")
    return HistoryJob(
        id=job_id,
        array_job_id=integer(array) if task else None,
        array_task_id=integer(task) if task else None,
        name=get("JobName"),
        user=get("User"),
        account=get("Account"),
        qos=get("QOS"),
        partition=get("Partition"),
        state=state,
        state_text=get("State"),
        reason=clean(get("Reason")),
        nodes=hosts(get("NodeList")),
        node_count=integer(get("NNodes")) or 0,
        cpus=integer(get("NCPUS")) or integer(get("AllocCPUS")) or 0,
        memory_bytes=memory_of_tres(tres) or memory(get("ReqMem")) or 0,
        gpus=gpus_of_tres(tres),
        submitted_at=unix_time(get("Submit")),
        eligible_at=unix_time(get("Eligible")),
        started_at=unix_time(get("Start")),
        ended_at=None if state.active else unix_time(get("End")),
        elapsed_seconds=integer(get("ElapsedRaw")) or 0,
        limit_seconds=None if minutes is None else minutes * 60,
        exit_code=code,
        exit_signal=signal,
        cpu_seconds=seconds(cpu_text) if cpu_text else None,
        work_dir=get("WorkDir"),
    )


def _slurmdb_job(raw: Mapping[str, Any]) -> HistoryJob:
    times, array, state_raw = json_map(raw, "time"), json_map(raw, "array"), json_map(raw, "state")
    words = json_words(state_raw, "current")
    state = parse_job_state(*words)
    all_tres = json_map(raw, "tres")
    tres = _tres(all_tres, "allocated") or _tres(all_tres, "requested")
    nodes = hosts(json_text(raw, "nodes"))
    array_job_id = json_number(array, "job_id") or None
    minutes = json_number(times, "limit")
    exit_code = json_map(raw, "exit_code")
    code: int | None = json_number(exit_code, "return_code") or 0
    if state is JobState.FAILED and not code:
        code = None  # slurmrestd 22.05 loses the code, and says SUCCESS
    peaks = [_step_peak(step) for step in json_objects(raw, "steps")]
    cpu = json_map(times, "total")
    return HistoryJob(
        id=json_number(raw, "job_id") or 0,
        array_job_id=array_job_id,
        array_task_id=json_number(array, "task_id") if array_job_id else None,
        name=json_raw(raw, "name"),
        user=json_text(raw, "user") or json_text(json_map(raw, "association"), "user"),
        account=json_text(raw, "account"),
        qos=json_text(raw, "qos"),
        partition=json_text(raw, "partition"),
        state=state,
        state_text="+".join(words),
        reason=json_text(state_raw, "reason"),
        nodes=nodes,
        node_count=json_number(raw, "allocation_nodes") or _whole(tres, "node") or len(nodes),
        cpus=_whole(tres, "cpu") or json_number(json_map(raw, "required"), "CPUs") or 0,
        memory_bytes=memory_of_tres(tres),
        gpus=gpus_of_tres(tres),
        submitted_at=json_time(times, "submission"),
        eligible_at=json_time(times, "eligible"),
        started_at=json_time(times, "start"),
        ended_at=None if state.active else json_time(times, "end"),
        elapsed_seconds=json_number(times, "elapsed") or 0,
        limit_seconds=None if minutes is None else minutes * 60,
        exit_code=code,
        exit_signal=json_number(json_map(exit_code, "signal"), "id", "signal_id") or 0,
        cpu_seconds=json_number(cpu, "seconds"),
        max_rss_bytes=max(peaks, default=0) or None,
        work_dir=json_raw(raw, "working_directory"),
    )


def _tres(raw: Mapping[str, Any], key: str) -> dict[str, str]:
    """The list of `{type, name, count}` in the form of sacct's TRES text."""
    found: dict[str, str] = {}
    for item in json_objects(raw, key):
        count = json_number(item, "count")
        name = "/".join(part for part in (json_text(item, "type"), json_text(item, "name")) if part)
        if count is not None and name:
            found[name] = str(count)
    return found


def _whole(tres: Mapping[str, str], key: str) -> int:
    return integer(tres.get(key, "")) or 0


def _step_peak(step: Mapping[str, Any]) -> int:
    """A step's largest memory: `mem` of its `requested.max` list, in bytes."""
    return _whole(_tres(json_map(json_map(step, "tres"), "requested"), "max"), "mem")
