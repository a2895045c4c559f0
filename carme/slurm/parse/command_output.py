"""The text that Slurm's commands print: scontrol, squeue, sacct, sacctmgr and `sbatch --test-only`.

A job is not read from scontrol: a user who puts ` UserId=other(1001)` into the job's name would
be believed.
"""

import re
from collections.abc import Iterator, Mapping

from carme.slurm.gres import parse_tres
from carme.slurm.models import ExpectedStart, HistoryJob, Job, Node, Partition, Reservation
from carme.slurm.parse.records import (
    SQUEUE_FIELDS,
    FieldTable,
    history_job,
    job,
    node,
    partition,
    read_fields,
    reservation,
)
from carme.slurm.parse.values import (
    clean,
    exit_status,
    hosts,
    names,
    number,
    positive_seconds,
    text,
    text_memory,
    tres_amounts,
    unix_time,
    user_text,
)
from carme.slurm.rights import Association, JobLimits, Qos

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_/:]*)=")
_REASON_BY = re.compile(r"\s*\[[^\[\]@]+@[^\[\]]*\]\s*$")
_TEST_ONLY = re.compile(
    r"Job \S+ to start at (\S+)(?: using \d+ processors)?(?: on(?: nodes)? (\S+))?"
    r"(?: in partition (\S+))?"
)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")

# The last field cannot break over lines: it shows where a record ends.
SACCT_FORMAT = (
    "JobIDRaw,JobID,JobName,User,Account,QOS,Partition,State,Reason,NodeList,NNodes,NCPUS,"
    "AllocTRES,ReqTRES,Submit,Eligible,Start,End,TimelimitRaw,ExitCode,TotalCPU,MaxRSS,WorkDir,"
    "ElapsedRaw"
)
# Names that every release since 17.11 knows; sacctmgr refuses all columns for an unknown one.
ASSOCIATION_FORMAT = (
    "Cluster,Account,User,Partition,ParentName,QOS,DefaultQOS,MaxJobs,MaxSubmit,MaxWall,MaxTRES,"
    "MaxTRESPerNode,MaxTRESMins,GrpJobs,GrpSubmit,GrpTRES"
)

_ASSOCIATION: FieldTable = {
    "account": (user_text, ("account",)),
    "user": (user_text, ("user",)),
    "partition": (user_text, ("partition",)),
    "parent": (user_text, ("parentname",)),
    "qos": (names, ("qos",)),
    "default_qos": (text, ("defqos",)),
}
# Columns of QoS and associations differ in their names, not in their meaning.
_LIMITS: FieldTable = {
    "max_seconds": (positive_seconds, ("maxwall", "maxwallpj")),
    "max_jobs": (number, ("maxjobs", "maxjobspu", "maxjobsperuser")),
    "max_submitted": (number, ("maxsubmit", "maxsubmitpu", "maxsubmitjobsperuser")),
    "group_jobs": (number, ("grpjobs",)),
    "group_submitted": (number, ("grpsubmit", "grpsubmitjobs")),
    "per_job": (tres_amounts, ("maxtres", "maxtrespj", "maxtresperjob")),
    "per_node": (tres_amounts, ("maxtrespernode", "maxtrespn")),
    "per_user": (tres_amounts, ("maxtrespu", "maxtresperuser")),
    "per_account": (tres_amounts, ("maxtrespa", "maxtresperaccount")),
    "group": (tres_amounts, ("grptres",)),
    "minutes_per_job": (tres_amounts, ("maxtresmins", "maxtresminspj", "maxtresminsperjob")),
}


def parse_version(text: str) -> str:
    """`22.05.8` in `slurm 22.05.8` or `slurm-wlm 22.05.8`; empty if there is none."""
    match = _VERSION.search(text)
    return match[0] if match else ""


def parse_test_only(text: str, asked_at: float) -> ExpectedStart | None:
    """The expected start in the output of `sbatch --test-only`; None if there is none."""
    match = _TEST_ONLY.search(text)
    starts_at = unix_time(match[1]) if match else None
    if not match or starts_at is None:
        return None
    nodes, partition = hosts(match[2]), match[3] or ""
    return ExpectedStart(starts_at=starts_at, nodes=nodes, partition=partition, asked_at=asked_at)


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """The partitions in `scontrol --oneliner show partitions`."""
    return tuple(partition(record) for record in _scontrol_records(text, "PartitionName"))


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes in `scontrol --oneliner --details show nodes`."""
    return tuple(node(record) for record in _scontrol_records(text, "NodeName"))


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """The reservations in `scontrol --oneliner show reservations`."""
    return tuple(reservation(record) for record in _scontrol_records(text, "ReservationName"))


def parse_squeue(text: str, separator: str) -> tuple[Job, ...]:
    """The jobs that `squeue --noheader -O FIELD:SEPARATOR,…` printed, SQUEUE_FIELDS in order.

    The caller draws the separator at random for each call, so that no job name or comment can
    contain it. Lines may break anywhere.
    """
    cells, width = text.split(separator), len(SQUEUE_FIELDS)
    jobs = []
    for start in range(0, len(cells) - width + 1, width):
        record = dict(zip(SQUEUE_FIELDS, cells[start : start + width], strict=True))
        tasks = clean(record["ArrayTaskID"])
        if not tasks:
            record["ArrayJobID"] = ""
        elif number(tasks) is None:
            record["array_task_string"] = tasks
        if record["Comment"] == "(null)":
            record["Comment"] = ""
        if number(record["JobID"]):
            jobs.append(job(record))
    return tuple(jobs)


def parse_sacct(text: str, separator: str = "|") -> tuple[HistoryJob, ...]:
    """The jobs in `sacct --parsable2` with its header line, with any columns.

    The memory of steps counts for their job. A record may break over lines; one with a separator
    too many is ambiguous and left out.
    """
    jobs: dict[int, dict[str, str]] = {}
    peaks: dict[int, int] = {}
    for record in _sacct_records(text, separator):
        number_text, _, step = record.get("JobIDRaw", record.get("JobID", "")).partition(".")
        job_id = number(number_text)
        if job_id is None:
            continue
        peak = text_memory(record.get("MaxRSS", ""), default_unit="") or 0
        peaks[job_id] = max(peaks.get(job_id, 0), peak)
        if not step:
            jobs[job_id] = record
    return tuple(_sacct_job(job_id, record, peaks[job_id]) for job_id, record in jobs.items())


def parse_associations(text: str, cluster: str = "") -> tuple[Association, ...]:
    """The associations in `sacctmgr show associations`, of one cluster if it is named."""
    return tuple(
        Association(**read_fields(row, _ASSOCIATION), limits=_limits(row))
        for row in _sacctmgr_rows(text)
        if row.get("account") and (not cluster or row.get("cluster", cluster) == cluster)
    )


def parse_qos(text: str) -> tuple[Qos, ...]:
    """The QoS in `sacctmgr show qos`."""
    return tuple(
        Qos(
            name=row["name"],
            flags=names(row.get("flags")),
            limits=_limits(row),
        )
        for row in _sacctmgr_rows(text)
        if row.get("name")
    )


def parse_default_accounts(text: str) -> dict[str, str]:
    """User to default account in `sacctmgr show users`."""
    rows = _sacctmgr_rows(text)
    return {row["user"]: row["defacct"] for row in rows if row.get("user") and row.get("defacct")}


def parse_accounting(text: str) -> tuple[str, tuple[str, ...]]:
    """The cluster's name and its AccountingStorageEnforce, in `scontrol show config`."""
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            settings.setdefault(key.strip().lower(), clean(value))
    enforced = settings.get("accountingstorageenforce", "").lower()
    # Not `names`: `all` is a value here.
    values = tuple(value.strip() for value in enforced.split(",") if value.strip())
    return settings.get("clustername", ""), values


def _scontrol_records(text: str, first_key: str) -> Iterator[dict[str, str]]:
    """A record per line. The first of two equal keys counts: free text stands at the end."""
    for line in text.split("\n"):
        if not line.startswith(f"{first_key}="):
            continue
        # Splitting on one group gives "", key, value, key, value, …
        _, *parts = _KEY.split(line)
        values = map(str.strip, reversed(parts[1::2]))
        record = dict(zip(reversed(parts[::2]), values, strict=True))
        # People read the reason, so it is kept whole even if it looks like further fields.
        if "Reason" in record:
            reason = line.partition(" Reason=")[2].partition(" Comment=")[0]
            record["Reason"] = _REASON_BY.sub("", clean(reason))
        if record[first_key]:
            yield record


def _sacct_records(text: str, separator: str) -> Iterator[dict[str, str]]:
    lines = text.split("\n")
    header = lines[0].rstrip("\r").split(separator)
    pending = ""
    for line in lines[1:]:
        pending = f"{pending}\n{line}" if pending else line
        width = pending.count(separator) + 1
        if width > len(header):
            # The lines before do not belong to this one.
            pending, width = line, line.count(separator) + 1
        if width == len(header) > 1:
            yield dict(zip(header, pending.split(separator), strict=True))
            pending = ""
        elif width > len(header):
            pending = ""


def _sacct_job(job_id: int, record: Mapping[str, str], peak_bytes: int) -> HistoryJob:
    array, _, task = record.get("JobID", "").partition("_")
    array_fields = {"array.job_id": array, "array.task_id": task} if task else {}
    tres = parse_tres(record.get("AllocTRES") or record.get("ReqTRES", ""))
    state = record.get("State", "")
    code, signal = exit_status(record.get("ExitCode"))
    return HistoryJob(
        **history_job({**record, **array_fields, "job_id": job_id}, tres, (state,)),
        exit_code=code,
        exit_signal=signal,
        max_rss_bytes=peak_bytes or None,
    )


def _limits(row: Mapping[str, str]) -> JobLimits:
    return JobLimits(**read_fields(row, _LIMITS))


def _sacctmgr_rows(text: str) -> Iterator[dict[str, str]]:
    """A dictionary per line, by column names without blanks; skips lines of another width."""
    header: list[str] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.rstrip("\r").split("|")]
        if not header:
            # sacctmgr may warn before it answers.
            if len(cells) > 1:
                header = [cell.replace(" ", "").lower() for cell in cells]
        elif len(cells) == len(header):
            yield dict(zip(header, cells, strict=True))
