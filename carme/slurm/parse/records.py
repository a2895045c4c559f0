"""Models from records: mappings of Slurm's field names to values, whichever way they were read.

A table names each field of a model as slurmrestd (and `--json`) and the commands name it; the
value is taken from the first of these names that has one. Newer releases of slurmrestd nest some
fields: `nodes.total` is `total` in the object `nodes`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carme.slurm.gres import (
    UNTYPED,
    gpus_of_gres,
    gpus_of_tres,
    memory_of_tres,
    parse_gres,
    parse_tres,
    total_gpus,
)
from carme.slurm.models import HistoryJob, Job, Node, Partition, Reservation
from carme.slurm.parse.values import (
    comment,
    count,
    cpu_seconds,
    exit_status,
    hosts,
    limit_seconds,
    memory,
    names,
    number,
    objects,
    positive,
    positive_seconds,
    section,
    text,
    texts,
    unix_time,
    used_memory,
    user_text,
)
from carme.slurm.states import JobState, NodeState, parse_job_state, parse_node_state

Record = Mapping[str, Any]
FieldTable = Mapping[str, tuple[Callable[[Any], Any], tuple[str, ...]]]
_MISSING: Any = object()

# slurmrestd's new and old name, scontrol's.
_PARTITION: FieldTable = {
    "name": (text, ("name", "PartitionName")),
    "state": (text, ("partition.state", "state", "State")),
    "nodes": (hosts, ("nodes.configured", "nodes", "Nodes")),
    "total_nodes": (count, ("nodes.total", "total_nodes", "TotalNodes")),
    "total_cpus": (count, ("cpus.total", "total_cpus", "TotalCPUs")),
    "max_seconds": (positive_seconds, ("maximums.time", "max_time_limit", "MaxTime")),
    "default_seconds": (positive_seconds, ("defaults.time", "default_time_limit", "DefaultTime")),
    "min_nodes": (count, ("minimums.nodes", "min nodes per job", "MinNodes")),
    "max_nodes": (positive, ("maximums.nodes", "maximum_nodes_per_job", "MaxNodes")),
    "max_cpus_per_node": (
        positive,
        ("maximums.cpus_per_node", "maximum_cpus_per_node", "MaxCPUsPerNode"),
    ),
    "default_memory_per_cpu_bytes": (
        memory,
        ("defaults.partition_memory_per_cpu", "default_memory_per_cpu", "DefMemPerCPU"),
    ),
    "default_memory_per_node_bytes": (
        memory,
        ("defaults.partition_memory_per_node", "default_memory_per_node", "DefMemPerNode"),
    ),
    "max_memory_per_cpu_bytes": (
        memory,
        ("maximums.partition_memory_per_cpu", "maximum_memory_per_cpu", "MaxMemPerCPU"),
    ),
    "max_memory_per_node_bytes": (
        memory,
        ("maximums.partition_memory_per_node", "maximum_memory_per_node", "MaxMemPerNode"),
    ),
    "priority_tier": (count, ("priority.tier", "priority_tier", "PriorityTier")),
    "qos": (text, ("qos.assigned", "qos", "QoS")),
    "allow_accounts": (names, ("accounts.allowed", "allowed_accounts", "AllowAccounts")),
    "deny_accounts": (names, ("accounts.deny", "denied_accounts", "DenyAccounts")),
    "allow_groups": (names, ("groups.allowed", "allowed_groups", "AllowGroups")),
    "allow_qos": (names, ("qos.allowed", "allowed_qos", "AllowQos")),
    "deny_qos": (names, ("qos.deny", "denied_qos", "DenyQos")),
    "gpus": (
        lambda value: gpus_of_tres(parse_tres(text(value))),
        ("tres.configured", "tres", "TRES"),
    ),
}
# slurmrestd's name, scontrol's.
_NODE: FieldTable = {
    "name": (text, ("name", "NodeName")),
    "reason": (text, ("reason", "Reason")),
    "address": (text, ("address", "NodeAddr")),
    "partitions": (names, ("partitions", "Partitions")),
    "features": (names, ("features", "AvailableFeatures")),
    "cpus": (count, ("cpus", "CPUTot")),
    "cpus_used": (count, ("alloc_cpus", "CPUAlloc")),
    "memory_bytes": (used_memory, ("real_memory", "RealMemory")),
    "memory_used_bytes": (used_memory, ("alloc_memory", "AllocMem")),
    "gpus": (lambda value: gpus_of_gres(parse_gres(text(value))), ("gres", "Gres")),
    "slurm_version": (text, ("slurmd_version", "version", "Version")),
}
_RESERVATION: FieldTable = {
    "name": (text, ("name", "ReservationName")),
    "starts_at": (unix_time, ("start_time", "StartTime")),
    "ends_at": (unix_time, ("end_time", "EndTime")),
    "nodes": (hosts, ("node_list", "Nodes")),
    "node_count": (count, ("node_count", "NodeCnt")),
    "partition": (text, ("partition", "PartitionName")),
    "flags": (lambda value: tuple(sorted(names(value))), ("flags", "Flags")),
    "users": (names, ("users", "Users")),
    "accounts": (names, ("accounts", "Accounts")),
    "groups": (names, ("groups", "Groups")),
}
# slurmrestd's name, then squeue's, from which its command line is made.
_JOB: FieldTable = {
    "id": (count, ("job_id", "JobID")),
    "array_job_id": (positive, ("array_job_id", "ArrayJobID")),
    "array_task_id": (number, ("array_task_id", "ArrayTaskID")),
    "name": (user_text, ("name", "Name")),
    "user": (text, ("user_name", "UserName")),
    "uid": (number, ("user_id", "UserID")),
    "account": (text, ("account", "Account")),
    "qos": (text, ("qos", "QOS")),
    "partition": (text, ("partition", "Partition")),
    "reason": (text, ("state_reason", "Reason")),
    "nodes": (hosts, ("nodes", "NodeList")),
    "node_count": (count, ("node_count", "NumNodes")),
    "cpus": (count, ("cpus", "NumCPUs")),
    "submitted_at": (unix_time, ("submit_time", "SubmitTime")),
    "eligible_at": (unix_time, ("eligible_time", "EligibleTime")),
    "started_at": (unix_time, ("start_time", "StartTime")),
    "ends_at": (unix_time, ("end_time", "EndTime")),
    "limit_seconds": (limit_seconds, ("time_limit", "TimeLimit")),
    "priority": (number, ("priority", "PriorityLong")),
    "dependency": (text, ("dependency", "Dependency")),
    "reservation": (text, ("resv_name", "Reservation")),
    "features": (text, ("features", "Feature")),
    "work_dir": (user_text, ("current_working_directory", "WorkDir")),
    "comment": (comment, ("comment", "Comment")),
    "restarts": (count, ("restart_cnt", "RestartCnt")),
}
# Fields of a job's record from which others are worked out.
_JOB_DETAILS: FieldTable = {
    "states": (names, ("job_state", "State")),
    "tres": (text, ("tres_alloc_str", "tres_req_str", "tres-alloc")),
    "gpus_per_job": (text, ("tres_per_job", "tres-per-job")),
    "gpus_per_node": (text, ("tres_per_node", "tres-per-node")),
    "gpus_per_task": (text, ("tres_per_task", "tres-per-task")),
    "tasks": (count, ("tasks", "NumTasks")),
    "exit_status": (exit_status, ("exit_code",)),
}
SQUEUE_FIELDS = tuple(
    field_names[-1] for table in (_JOB, _JOB_DETAILS) for _, field_names in table.values()
)
# slurmdbd's name, sacct's.
_HISTORY_JOB: FieldTable = {
    "id": (count, ("job_id",)),
    "array_job_id": (positive, ("array.job_id",)),
    "array_task_id": (number, ("array.task_id",)),
    "name": (user_text, ("name", "JobName")),
    "user": (text, ("user", "association.user", "User")),
    "account": (text, ("account", "Account")),
    "qos": (text, ("qos", "QOS")),
    "partition": (text, ("partition", "Partition")),
    "reason": (text, ("state.reason", "Reason")),
    "nodes": (hosts, ("nodes", "NodeList")),
    "node_count": (count, ("allocation_nodes", "NNodes")),
    "cpus": (count, ("NCPUS", "AllocCPUS", "required.CPUs")),
    "submitted_at": (unix_time, ("time.submission", "Submit")),
    "eligible_at": (unix_time, ("time.eligible", "Eligible")),
    "started_at": (unix_time, ("time.start", "Start")),
    "ended_at": (unix_time, ("time.end", "End")),
    "elapsed_seconds": (count, ("time.elapsed", "ElapsedRaw")),
    "limit_seconds": (limit_seconds, ("time.limit", "TimelimitRaw")),
    "cpu_seconds": (cpu_seconds, ("time.total", "TotalCPU")),
    "work_dir": (user_text, ("working_directory", "WorkDir")),
}


def read_fields(record: Record, table: FieldTable) -> dict[str, Any]:
    """The fields in `table` with their values in `record`."""
    values = {}
    for field, (convert, field_names) in table.items():
        value = _MISSING
        for name in field_names:
            if name in record:
                value = convert(record[name])
                if value:
                    break
        values[field] = convert(None) if value is _MISSING else value
    return values


def answer_errors(answer: object) -> str:
    """The errors in slurmrestd's answer as one line; empty if there are none."""
    errors = objects(answer, "errors")
    messages = (text(e.get("error")) or text(e.get("description")) for e in errors)
    return "; ".join(message for message in messages if message)


def answer_version(answer: object) -> str:
    """The Slurm release that answered, such as `22.05.8`."""
    meta = section(answer, "meta")
    return text((section(meta, "slurm") or section(meta, "Slurm")).get("release"))


def parse_json_jobs(answer: object) -> tuple[Job, ...]:
    """The jobs in an answer to `/jobs`, `/job/ID` or `squeue --json`."""
    return tuple(job(record) for record in objects(answer, "jobs") if number(record.get("job_id")))


def parse_json_nodes(answer: object) -> tuple[Node, ...]:
    """The nodes in an answer to `/nodes`."""
    return tuple(node(record) for record in objects(answer, "nodes") if text(record.get("name")))


def parse_json_partitions(answer: object) -> tuple[Partition, ...]:
    """The partitions in an answer to `/partitions`."""
    records = objects(answer, "partitions")
    return tuple(partition(_flattened(record)) for record in records if text(record.get("name")))


def parse_json_reservations(answer: object) -> tuple[Reservation, ...]:
    """The reservations in an answer to `/reservations`."""
    records = objects(answer, "reservations")
    return tuple(reservation(record) for record in records if text(record.get("name")))


def parse_slurmdb_jobs(answer: object) -> tuple[HistoryJob, ...]:
    """The jobs in an answer to `/slurmdb/…/jobs`."""
    records = objects(answer, "jobs")
    return tuple(_slurmdb_job(record) for record in records if number(record.get("job_id")))


def partition(record: Record) -> Partition:
    """A partition from slurmrestd's flattened record or scontrol's."""
    flags = {flag.lower() for flag in names(record.get("flags"))}
    return Partition(
        **read_fields(record, _PARTITION),
        default="default" in flags or record.get("Default") == "YES",
        hidden="hidden" in flags or record.get("Hidden") == "YES",
    )


def node(record: Record) -> Node:
    """A node from slurmrestd's record or scontrol's."""
    values = read_fields(record, _NODE)
    state_names = (
        *names(record.get("state", record.get("State"))),
        *names(record.get("state_flags")),
    )
    state, flags = parse_node_state(*state_names)
    # The releases differ in whether they tell MIXED from ALLOCATED.
    if state is NodeState.ALLOCATED and 0 < values["cpus_used"] < values["cpus"]:
        state = NodeState.MIXED
    gres_used = parse_gres(text(record.get("gres_used", record.get("GresUsed"))))
    gpus_used = gpus_of_gres(gres_used)
    return Node(
        **values,
        state=state,
        flags=flags,
        state_text="+".join(state_names).upper(),
        gpus_used={kind: amount for kind, amount in gpus_used.items() if amount},
        gpu_indices_used={g.type: g.indices for g in gres_used if g.name == "gpu" and g.indices},
    )


def reservation(record: Record) -> Reservation:
    """A reservation from slurmrestd's record or scontrol's."""
    return Reservation(**read_fields(record, _RESERVATION))


def job(record: Record) -> Job:
    """A job from slurmrestd's record or squeue's."""
    values, details = read_fields(record, _JOB), read_fields(record, _JOB_DETAILS)
    state = parse_job_state(*details["states"])
    tres = parse_tres(details["tres"])
    cpus = values["cpus"] = values["cpus"] or count(tres.get("cpu"))
    node_count = values["node_count"] = values["node_count"] or len(values["nodes"])
    requested_memory = used_memory(record.get("memory_per_node")) * node_count
    requested_memory = requested_memory or used_memory(record.get("memory_per_cpu")) * cpus
    gpus_per_node = texts(record.get("gres_detail"))
    exit_code, exit_signal = details["exit_status"]
    if values["array_job_id"] is None:
        values["array_task_id"] = None
    if state.waiting:
        values |= {"expected_start_at": values["started_at"], "started_at": None, "ends_at": None}
    return Job(
        **values,
        array_tasks=text(record.get("array_task_string")),
        state=state,
        state_text="+".join(details["states"]),
        memory_bytes=memory_of_tres(tres) or requested_memory,
        gpus=_job_gpus(gpus_per_node, tres, details, node_count),
        gpu_indices=_job_gpu_indices(gpus_per_node, values["nodes"]),
        exit_code=exit_code,
        exit_signal=exit_signal,
    )


def history_job(record: Record, tres: Mapping[str, str], states: Sequence[str]) -> dict[str, Any]:
    """The fields of a HistoryJob that sacct and slurmdbd have in common."""
    values = read_fields(record, _HISTORY_JOB)
    state = parse_job_state(*states)
    if state.active:
        values["ended_at"] = None
    if values["array_job_id"] is None:
        values["array_task_id"] = None
    return {
        **values,
        "state": state,
        "state_text": "+".join(states),
        "memory_bytes": memory_of_tres(tres) or used_memory(record.get("ReqMem")),
        "gpus": gpus_of_tres(tres),
    }


def _slurmdb_job(record: Record) -> HistoryJob:
    flat = _flattened(record)
    tres = _tres(flat, "tres.allocated") or _tres(flat, "tres.requested")
    flat |= {"NCPUS": tres.get("cpu"), "NNodes": tres.get("node")}
    values = history_job(flat, tres, names(flat.get("state.current")))
    code, signal = exit_status(section(record, "exit_code"))
    is_lost = values["state"] is JobState.FAILED and not code  # slurmrestd 22.05 says SUCCESS
    steps = (section(section(step, "tres"), "requested") for step in objects(record, "steps"))
    peak = max((count(_tres(requested, "max").get("mem")) for requested in steps), default=0)
    values["node_count"] = values["node_count"] or len(values["nodes"])
    return HistoryJob(
        **values,
        exit_code=None if is_lost else code,
        exit_signal=signal,
        max_rss_bytes=peak or None,
    )


def _flattened(record: Record) -> dict[str, Any]:
    """`record` with its nested objects' fields as `object.field`."""
    nested = {
        f"{key}.{field}": value
        for key, values in record.items()
        if isinstance(values, dict)
        for field, value in values.items()
    }
    return {**record, **nested}


def _tres(record: object, key: str) -> dict[str, str]:
    """The list of `{type, name, count}` in the form of sacct's TRES text."""
    tres: dict[str, str] = {}
    for item in objects(record, key):
        amount = number(item.get("count"))
        name = "/".join(filter(None, (text(item.get("type")), text(item.get("name")))))
        if amount is not None and name:
            tres[name] = str(amount)
    return tres


def _job_gpus(
    gpus_per_node: Sequence[str], tres: Mapping[str, str], request: Record, node_count: int
) -> dict[str, int]:
    """GPUs per type: those allocated on each node, else those in the TRES, else the request.

    Sites that do not account for GPU types have `gres/gpu=4` alone in the TRES; the request then
    names the type, if it adds up.
    """
    allocated = total_gpus(gpus_of_gres(parse_gres(gres)) for gres in gpus_per_node)
    if allocated:
        return {kind: amount for kind, amount in allocated.items() if amount}
    counted = gpus_of_tres(tres)
    if counted and UNTYPED not in counted:
        return counted
    requested: dict[str, int] = {}
    factors = {"gpus_per_job": 1, "gpus_per_node": node_count, "gpus_per_task": request["tasks"]}
    for key, factor in factors.items():
        if gpus := gpus_of_gres(parse_gres(request[key])):
            requested = {kind: amount * max(factor, 1) for kind, amount in gpus.items()}
            break
    if not counted:
        return requested
    adds_up = UNTYPED not in requested and sum(requested.values()) == sum(counted.values())
    return requested if adds_up else counted


def _job_gpu_indices(
    gpus_per_node: Sequence[str], nodes: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Node to GPU indices; `gpus_per_node` has a GRES for each of `nodes`, in their order."""
    if len(gpus_per_node) != len(nodes):
        return {}
    indices = {}
    for name, gres in zip(nodes, gpus_per_node, strict=True):
        node_indices = [i for g in parse_gres(gres) if g.name == "gpu" for i in g.indices]
        if node_indices:
            indices[name] = tuple(sorted(node_indices))
    return indices
