"""Limits of accounts, QoS, partitions and reservations on a request: messages at fields, and why a
job would wait."""

from typing import Any

from carme.requests.resource_request import GIB, Problems, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.slurm.limits import (
    JOBS,
    SECONDS,
    SUBMITTED,
    Limit,
    amount,
    minute_limits,
    time_limits,
)
from carme.slurm.models import Job, Partition
from carme.slurm.rights import JobLimits
from carme.slurm.snapshot import Snapshot
from carme.units import format_bytes, format_duration, hours_within

Shortage = tuple[Limit, int]
"""A limit that running jobs leave too little of, and what is left of it."""

_FIELD = {SECONDS: "hours", "cpu": "cpus", "mem": "memory_gb", "node": "nodes"}
_UNKNOWN_RIGHTS = "what you have of these cannot be read from Slurm now; leave it empty"
_FOR = {
    "job": "a session",
    "node": "a session",
    "user": "one user",
    "account": "one account",
    "group": "all its jobs together",
}


def user_problems(
    request: ResourceRequest, snapshot: Snapshot, user: SlurmUser, now: float
) -> Problems:
    """What this user may not have even if nothing else ran; empty when the user may have all."""
    partition = snapshot.partition(request.partition)
    if partition is None or partition.hidden:
        return {}  # `placement.cluster_problems` reports it
    problems = {
        **_name_problems(request, partition, user),
        **_reservation_problems(request, snapshot, user, now),
    }
    if problems:
        return problems  # the limits of an account that the user does not have mean nothing
    job = as_job(request, user)
    limits = user.limits(partition, snapshot, request.account, request.qos)
    for limit in (*limits, *minute_limits(job, partition, user.rights)):
        field, demand = _field(limit), amount(job, limit.resource)
        if limit.scope == "node":
            demand //= max(1, job.node_count)
        if field is not None and demand > limit.maximum:
            problems.setdefault(field, _too_much(limit))
        elif limit.resource == SUBMITTED and (used := limit.used(snapshot.jobs)) >= limit.maximum:
            problems.setdefault(field or "", _full(limit, used))
    return problems


def request_time_limits(
    request: ResourceRequest, snapshot: Snapshot, user: SlurmUser, now: float
) -> list[Limit]:
    """The limits on the time of a request: of partition, account, QoS and reservation."""
    partition = snapshot.partition(request.partition)
    return [
        *_limits_of_any_size(request, snapshot, user, now),
        *minute_limits(as_job(request, user), partition, user.rights),
    ]


def _limits_of_any_size(
    request: ResourceRequest, snapshot: Snapshot, user: SlurmUser, now: float
) -> list[Limit]:
    """The limits on the time of a request, whatever it has of cores, memory and GPUs."""
    partition = snapshot.partition(request.partition)
    limits = list(time_limits(partition, user.rights, request.account, request.qos))
    for reservation in user.reservations(snapshot, now):
        if reservation.name == request.reservation and reservation.ends_at:
            left = reservation.ends_at - max(now, reservation.starts_at or 0)
            # A minute less than is left: it goes by while the form is filled in.
            seconds = max(60, round(left) // 60 * 60 - 60)
            limits.append(Limit(SECONDS, seconds, f"reservation {reservation.name}"))
    return limits


def with_allowed_hours(
    values: dict[str, Any], raw: dict[str, Any], snapshot: Snapshot, user: SlurmUser, now: float
) -> dict[str, Any]:
    """The defaults `values` with a time that the account, QoS and reservation in `raw` allow."""
    chosen = {**values, **{name: value for name, value in raw.items() if isinstance(value, str)}}
    # Without validation: the names that a user sent may be wrong, and have no limits then. Numbers
    # may be wrong, too, so limits that depend on them wait for validation.
    fields = {name: chosen[name] for name in ResourceRequest.model_fields if name in chosen}
    limits = _limits_of_any_size(ResourceRequest.model_construct(**fields), snapshot, user, now)
    allowed_hours = (hours_within(limit.maximum) for limit in limits)
    return {**values, "hours": min(values["hours"], 8760, *allowed_hours)}


def as_job(request: ResourceRequest, user: SlurmUser) -> Job:
    """The request as a job, so that limits count it like one."""
    account, qos = user.effective(request.account, request.qos, request.partition)
    nodes = request.nodes
    return Job(
        id=0,
        user=user.name,
        account=account,
        qos=qos,
        partition=request.partition,
        node_count=nodes,
        cpus=nodes * request.cpus,
        memory_bytes=nodes * request.memory_bytes,
        gpus={request.gpu_type: nodes * request.gpus} if request.gpus else {},
        limit_seconds=request.seconds,
        reservation=request.reservation,
    )


def _name_problems(request: ResourceRequest, partition: Partition, user: SlurmUser) -> Problems:
    """Account, QoS and partition that do not go together, or that the user does not have."""
    if partition.allow_groups and not user.groups & set(partition.allow_groups):
        return {"partition": f"{partition.name} is open to other groups than yours"}
    if user.rights is None:
        named = ("account", "qos")
        return {name: _UNKNOWN_RIGHTS for name in named if getattr(request, name)}
    if request.account and request.account not in user.accounts:
        yours = ", ".join(user.accounts) or "none"
        return {"account": f"you have no account {request.account}; yours: {yours}"}
    account, qos = user.effective(request.account, request.qos, partition.name)
    association = user.rights.association(account, partition.name)
    field = "account" if user.chooses_account else "partition"
    if association is None and user.rights.associations:
        return {field: f"account {account} may not use {partition.name}"}
    if association is not None and user.account_refused(partition, account):
        return {field: f"{partition.name} is closed to account {account}"}
    if request.qos and (association is None or request.qos not in association.qos):
        if not association or not association.qos:
            return {"qos": "your account has no QoS"}
        yours = ", ".join(association.qos)
        return {"qos": f"account {account} has no QoS {request.qos}; it has {yours}"}
    if qos and (
        qos in partition.deny_qos or (partition.allow_qos and qos not in partition.allow_qos)
    ):
        field = "qos" if user.chooses_qos else "partition"
        return {field: f"{partition.name} is closed to QoS {qos}"}
    return {}


def _reservation_problems(
    request: ResourceRequest, snapshot: Snapshot, user: SlurmUser, now: float
) -> Problems:
    if not request.reservation:
        return {}
    usable = {reservation.name: reservation for reservation in user.reservations(snapshot, now)}
    reservation = usable.get(request.reservation)
    if reservation is None:
        yours = ", ".join(usable) or "none"
        return {"reservation": f"you have no reservation {request.reservation}; yours: {yours}"}
    account, _ = user.effective(request.account, "", request.partition)
    if not user.admitted(reservation, account):
        return {"reservation": f"{reservation.name} is not for account {account}"}
    names = {node.name for node in snapshot.nodes_in(request.partition)}
    if reservation.nodes and not names & set(reservation.nodes):
        return {"reservation": f"{reservation.name} has no nodes of {request.partition}"}
    start = max(now, reservation.starts_at or 0)
    if reservation.ends_at and start + request.seconds > reservation.ends_at:
        left = format_duration(max(0, reservation.ends_at - start))
        return {"hours": f"{reservation.name} has {left} left"}
    return {}


def _field(limit: Limit) -> str | None:
    """The field of the message; None for an amount that the form does not have."""
    if limit.resource.startswith("gres/gpu"):
        return "gpus"
    return "" if limit.resource in (JOBS, SUBMITTED) else _FIELD.get(limit.resource)


def _too_much(limit: Limit) -> str:
    if limit.resource == SECONDS:
        source = limit.source.removeprefix("partition ")
        return f"{source} allows at most {format_duration(limit.maximum)}"
    maximum = format_amount(limit.resource, limit.maximum)
    return f"{limit.source} gives {_FOR[limit.scope]} at most {maximum}"


def _full(limit: Limit, used: int) -> str:
    jobs = format_amount("queued or running job", limit.maximum)
    if limit.user:
        return f"{limit.source} allows {jobs} per user; you have {used}"
    return f"{limit.source} allows {jobs}; there are {used}"


def format_amount(resource: str, count: int) -> str:
    """`2 GPUs of type a100`, `1 core`, `64 GiB`."""
    if resource == "mem":
        return format_bytes(count)
    name, _, kind = resource.partition(":")
    noun = {"cpu": "core", "node": "node", JOBS: "running job", "gres/gpu": "GPU"}.get(name, name)
    return f"{count} {noun}{'s' if count != 1 else ''}{f' of type {kind}' if kind else ''}"


def shortages(request: ResourceRequest, snapshot: Snapshot, user: SlurmUser) -> list[Shortage]:
    """The limits that running jobs leave too little of for this request."""
    partition = snapshot.partition(request.partition)
    if partition is None:
        return []
    job = as_job(request, user)
    short = []
    for limit in user.limits(partition, snapshot, request.account, request.qos):
        demand = amount(job, limit.resource)
        if demand and limit.scope in ("user", "account", "group") and limit.resource != SUBMITTED:
            left = limit.maximum - limit.used(snapshot.jobs)
            if demand > left:
                short.append((limit, max(0, left)))
    return short


def wait_reason(short: list[Shortage]) -> str:
    """Why a request would wait although nodes are free; empty if no limit holds it."""
    if not short:
        return ""
    limit, left = short[0]
    used = format_amount(limit.resource, limit.maximum - left)
    maximum = format_amount(limit.resource, limit.maximum)
    if not limit.user:
        source, count = limit.source[:1].upper() + limit.source[1:], limit.maximum - left
        if limit.resource == JOBS:
            return f"{source} allows {maximum}; there are {count}."
        in_use = f"{count} {'is' if count == 1 else 'are'}"
        if limit.resource == "mem":
            in_use = f"{used} is"
        return f"{source} is limited to {maximum} for all its jobs; {in_use} in use."
    return f"You already have {used}, and {limit.source} gives one user at most {maximum}."


def reduced(request: ResourceRequest, short: list[Shortage]) -> ResourceRequest | None:
    """The part of the request that limits leave room for now; None if it would be of no use."""
    gpus, cpus, memory = request.gpus, request.cpus, request.memory_gb
    for limit, left in short:
        per_node = left // request.nodes  # a request is for each node, a limit for all of them
        if limit.resource.startswith("gres/gpu"):
            gpus = min(gpus, per_node)
        elif limit.resource == "cpu":
            cpus = min(cpus, per_node)
        elif limit.resource == "mem":
            memory = min(memory, per_node // GIB)
        else:
            return None
    if cpus < 1 or memory < 1 or (request.gpus and not gpus):
        return None
    return request.model_copy(update={"gpus": gpus, "cpus": cpus, "memory_gb": memory})


def describe(limits: JobLimits) -> str:
    """The limits of a QoS in one line for the form; empty when it has none."""
    parts = [f"up to {format_duration(limits.max_seconds)}"] if limits.max_seconds else []
    for amounts, jobs in ((limits.per_job, "a job"), (limits.per_user, "all your jobs")):
        parts += [
            f"at most {format_amount(resource, maximum)} in {jobs}"
            for resource, maximum in amounts.items()
            if resource in ("cpu", "mem", "node") or resource.startswith("gres/gpu")
        ]
    if limits.max_jobs is not None:
        parts.append(f"at most {format_amount(JOBS, limits.max_jobs)}")
    return "; ".join(parts)
