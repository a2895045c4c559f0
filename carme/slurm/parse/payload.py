"""slurmrestd's and `--json`'s answers, from v0.0.38 (Slurm 22.05) on.

Newer releases wrap numbers in `{"set": …, "infinite": …, "number": …}`, turn words into lists and
nest the fields of partitions; one reading covers all of them.
"""

from collections.abc import Mapping
from typing import Any

from carme.slurm.gres import gpus_of_gres, gpus_of_tres, memory_of_tres, parse_gres, parse_tres
from carme.slurm.models import Job, Node, Partition, Reservation
from carme.slurm.parse.gpus import GpuRequestFields, indices_by_type, job_gpu_indices, job_gpus
from carme.slurm.parse.values import (
    MEBIBYTE,
    hosts,
    integer,
    json_list,
    json_map,
    json_number,
    json_objects,
    json_raw,
    json_text,
    json_time,
    json_words,
    names,
)
from carme.slurm.states import NodeState, parse_job_state, parse_node_state

Raw = Mapping[str, Any]


def answer_errors(answer: object) -> str:
    """The errors in the answer as one line; empty if there are none."""
    errors = json_objects(answer, "errors")
    messages = (json_text(e, "error") or json_text(e, "description") for e in errors)
    return "; ".join(text for text in messages if text)


def answer_version(answer: object) -> str:
    """The Slurm release that answered, such as `22.05.8`."""
    meta = json_map(answer, "meta") if isinstance(answer, dict) else {}
    return json_text(json_map(meta, "slurm") or json_map(meta, "Slurm"), "release")


def parse_json_jobs(answer: object) -> tuple[Job, ...]:
    """The jobs in an answer to `/jobs`, `/job/ID` or `squeue --json`."""
    return tuple(_job(raw) for raw in json_objects(answer, "jobs") if json_number(raw, "job_id"))


def parse_json_nodes(answer: object) -> tuple[Node, ...]:
    """The nodes in an answer to `/nodes`."""
    return tuple(_node(raw) for raw in json_objects(answer, "nodes") if json_text(raw, "name"))


def parse_json_partitions(answer: object) -> tuple[Partition, ...]:
    """The partitions in an answer to `/partitions`."""
    partitions = (raw for raw in json_objects(answer, "partitions") if json_text(raw, "name"))
    return tuple(_partition(raw) for raw in partitions)


def parse_json_reservations(answer: object) -> tuple[Reservation, ...]:
    """The reservations in an answer to `/reservations`."""
    reservations = (raw for raw in json_objects(answer, "reservations") if json_text(raw, "name"))
    return tuple(_reservation(raw) for raw in reservations)


def _job(raw: Raw) -> Job:
    words = json_words(raw, "job_state")
    state = parse_job_state(*words)
    nodes = hosts(json_text(raw, "nodes"))
    tres_text = json_text(raw, "tres_alloc_str") or json_text(raw, "tres_req_str")
    tres = parse_tres(tres_text)
    node_count = json_number(raw, "node_count") or len(nodes)
    cpus = json_number(raw, "cpus") or integer(tres.get("cpu", "")) or 0
    detail = json_list(raw, "gres_detail")
    request = GpuRequestFields(
        json_text(raw, "tres_per_job"),
        json_text(raw, "tres_per_node"),
        json_text(raw, "tres_per_task"),
        node_count,
        json_number(raw, "tasks") or 1,
    )
    array_job_id = json_number(raw, "array_job_id") or None
    start, end = json_time(raw, "start_time"), json_time(raw, "end_time")
    limit = json_number(raw, "time_limit")
    code, signal = _exit(raw.get("exit_code"))
    return Job(
        id=json_number(raw, "job_id") or 0,
        array_job_id=array_job_id,
        array_task_id=json_number(raw, "array_task_id") if array_job_id else None,
        array_tasks=json_text(raw, "array_task_string"),
        name=json_raw(raw, "name"),
        user=json_text(raw, "user_name"),
        uid=json_number(raw, "user_id"),
        account=json_text(raw, "account"),
        qos=json_text(raw, "qos"),
        partition=json_text(raw, "partition"),
        state=state,
        state_text="+".join(words),
        reason=json_text(raw, "state_reason"),
        nodes=nodes,
        node_count=node_count,
        cpus=cpus,
        memory_bytes=memory_of_tres(tres) or _memory(raw, node_count, cpus),
        gpus=job_gpus(detail, tres_text, request),
        gpu_indices=job_gpu_indices(detail, nodes),
        submitted_at=json_time(raw, "submit_time"),
        eligible_at=json_time(raw, "eligible_time"),
        started_at=None if state.waiting else start,
        ends_at=None if state.waiting else end,
        expected_start_at=start if state.waiting else None,
        limit_seconds=None if limit is None else limit * 60,
        priority=json_number(raw, "priority"),
        dependency=json_text(raw, "dependency"),
        reservation=json_text(raw, "resv_name"),
        features=json_text(raw, "features"),
        work_dir=json_raw(raw, "current_working_directory"),
        comment=_comment(raw),
        exit_code=code,
        exit_signal=signal,
        restarts=json_number(raw, "restart_cnt") or 0,
    )


def _node(raw: Raw) -> Node:
    words = (*json_words(raw, "state"), *json_words(raw, "state_flags"))
    state, flags = parse_node_state(*words)
    cpus, used = json_number(raw, "cpus") or 0, json_number(raw, "alloc_cpus") or 0
    gres_used = json_text(raw, "gres_used")
    return Node(
        name=json_text(raw, "name"),
        state=mixed_or(state, cpus, used),
        flags=flags,
        state_text="+".join(word.upper() for word in words),
        reason=json_text(raw, "reason"),
        address=json_text(raw, "address"),
        partitions=json_words(raw, "partitions"),
        features=json_words(raw, "features"),
        cpus=cpus,
        cpus_used=used,
        memory_bytes=(json_number(raw, "real_memory") or 0) * MEBIBYTE,
        memory_used_bytes=(json_number(raw, "alloc_memory") or 0) * MEBIBYTE,
        gpus=gpus_of_gres(parse_gres(json_text(raw, "gres"))),
        gpus_used=_used(gpus_of_gres(parse_gres(gres_used))),
        gpu_indices_used=indices_by_type(gres_used),
        slurm_version=json_text(raw, "slurmd_version") or json_text(raw, "version"),
    )


def _partition(raw: Raw) -> Partition:
    default, maximum = json_map(raw, "defaults"), json_map(raw, "maximums")
    minimum, cpus = json_map(raw, "minimums"), json_map(raw, "cpus")
    nodes, tres = json_map(raw, "nodes"), json_map(raw, "tres")
    flags = {flag.lower() for flag in json_words(raw, "flags")}
    max_minutes = json_number(maximum, "time") or json_number(raw, "max_time_limit")
    default_minutes = json_number(default, "time") or json_number(raw, "default_time_limit")
    return Partition(
        name=json_text(raw, "name"),
        state=json_text(json_map(raw, "partition"), "state") or json_text(raw, "state"),
        default="default" in flags,
        hidden="hidden" in flags,
        nodes=hosts(json_text(nodes, "configured") or json_text(raw, "nodes")),
        total_nodes=json_number(nodes, "total") or json_number(raw, "total_nodes") or 0,
        total_cpus=json_number(cpus, "total") or json_number(raw, "total_cpus") or 0,
        gpus=gpus_of_tres(parse_tres(json_text(tres, "configured") or json_text(raw, "tres"))),
        max_seconds=max_minutes and max_minutes * 60,
        default_seconds=default_minutes and default_minutes * 60,
        min_nodes=json_number(minimum, "nodes") or json_number(raw, "min nodes per job") or 0,
        max_nodes=json_number(maximum, "nodes") or json_number(raw, "maximum_nodes_per_job"),
        max_cpus_per_node=json_number(maximum, "cpus_per_node")
        or json_number(raw, "maximum_cpus_per_node"),
        default_memory_per_cpu_bytes=_mebibytes(
            json_number(default, "partition_memory_per_cpu")
            or json_number(raw, "default_memory_per_cpu")
        ),
        default_memory_per_node_bytes=_mebibytes(
            json_number(default, "partition_memory_per_node")
            or json_number(raw, "default_memory_per_node")
        ),
        max_memory_per_cpu_bytes=_mebibytes(
            json_number(maximum, "partition_memory_per_cpu")
            or json_number(raw, "maximum_memory_per_cpu")
        ),
        max_memory_per_node_bytes=_mebibytes(
            json_number(maximum, "partition_memory_per_node")
            or json_number(raw, "maximum_memory_per_node")
        ),
        priority_tier=json_number(json_map(raw, "priority"), "tier")
        or json_number(raw, "priority_tier")
        or 0,
        qos=json_text(json_map(raw, "qos"), "assigned") or json_text(raw, "qos"),
        allow_accounts=_names(raw, "accounts", "allowed", "allowed_accounts"),
        deny_accounts=_names(raw, "accounts", "deny", "denied_accounts"),
        allow_groups=_names(raw, "groups", "allowed", "allowed_groups"),
        allow_qos=_names(raw, "qos", "allowed", "allowed_qos"),
        deny_qos=_names(raw, "qos", "deny", "denied_qos"),
    )


def _reservation(raw: Raw) -> Reservation:
    return Reservation(
        name=json_text(raw, "name"),
        starts_at=json_time(raw, "start_time"),
        ends_at=json_time(raw, "end_time"),
        nodes=hosts(json_text(raw, "node_list")),
        node_count=json_number(raw, "node_count") or 0,
        partition=json_text(raw, "partition"),
        flags=tuple(sorted(json_words(raw, "flags"))),
        users=json_words(raw, "users"),
        accounts=json_words(raw, "accounts"),
        groups=json_words(raw, "groups"),
    )


def mixed_or(state: NodeState, cpus: int, used: int) -> NodeState:
    """MIXED for an allocated node with CPUs left: the releases differ in who works that out."""
    return NodeState.MIXED if state is NodeState.ALLOCATED and 0 < used < cpus else state


def _exit(value: object) -> tuple[int | None, int | None]:
    """Code and signal: a wait status in 22.05, an object later."""
    if isinstance(value, dict):
        signal = json_map(value, "signal")
        number = json_number(signal, "id", "signal_id")
        # A job that a signal ended has no code: the commands print 0 then.
        return json_number(value, "return_code") or 0, number or 0
    status = json_number({"status": value}, "status")
    return (None, None) if status is None else (status >> 8, status & 0x7F)


def _memory(raw: Raw, nodes: int, cpus: int) -> int:
    per_node, per_cpu = json_number(raw, "memory_per_node"), json_number(raw, "memory_per_cpu")
    return ((per_node or 0) * nodes or (per_cpu or 0) * cpus) * MEBIBYTE


def _comment(raw: Raw) -> str:
    nested = json_map(raw, "comment")
    return json_raw(nested, "job") if nested else json_raw(raw, "comment")


def _used(gpus: dict[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in gpus.items() if count}


def _mebibytes(value: int | None) -> int | None:
    return value * MEBIBYTE if value else None


def _names(raw: Raw, section: str, key: str, old_key: str) -> tuple[str, ...]:
    return names(json_text(json_map(raw, section), key) or json_text(raw, old_key))
