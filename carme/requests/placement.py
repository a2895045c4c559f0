"""Whether and when a request would start, from a snapshot: the one answer for hub and service."""

import re
from dataclasses import dataclass, field, replace

from carme.errors import InputError
from carme.requests import user_limits
from carme.requests.resource_request import GIB, Problems, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import format_amount
from carme.slurm.models import ExpectedStart, Gpus, Node, Partition, Reservation
from carme.slurm.snapshot import Snapshot
from carme.units import format_bytes

AT_ONCE_SECONDS = 5
"""An expected start within this time counts as now."""
_AWAY = "Slurm does not answer now."
_ALL_CLOSED = "All nodes for it are down, drained or reserved before it would end."


@dataclass(frozen=True)
class Outlook:
    """Whether and when a request would start, as far as the snapshot shows it."""

    problems: Problems = field(default_factory=dict)
    """Why it can never start."""
    starts_now: bool = False
    wait_reason: str = ""
    """Why it would wait, where the snapshot is enough to tell."""
    starts_at: int | None = None
    """When its reservation begins or Slurm expects its start, in Unix seconds."""
    smaller: dict[str, int] | None = None
    """The fields of a smaller request that would start now."""

    @property
    def needs_slurm_estimate(self) -> bool:
        """Whether only Slurm knows when it would start."""
        return not (self.problems or self.starts_now or self.wait_reason or self.starts_at)


def outlook(
    request: ResourceRequest,
    snapshot: Snapshot,
    user: SlurmUser,
    now: float,
    max_nodes: int | None = None,
) -> Outlook:
    """The outlook for a user's request; `max_nodes` is the site's limit for a session."""
    if snapshot.controller == "away":
        return Outlook(wait_reason=_AWAY)
    if problems := all_problems(request, snapshot, user, now, max_nodes):
        return Outlook(problems)
    short = user_limits.shortages(request, snapshot, user)
    if not short and starts_now(request, snapshot, now):
        return Outlook(starts_now=True)
    room = user_limits.reduced(request, short)
    smaller = smaller_request(room, snapshot, now) if room else None
    if short:
        return Outlook(wait_reason=user_limits.wait_reason(short), smaller=smaller)
    reservation = _reservation(request, snapshot)
    if reservation and (reservation.starts_at or 0) > now:
        return Outlook(starts_at=reservation.starts_at, smaller=smaller)
    if not usable_nodes(request, snapshot, now):
        return Outlook(wait_reason=_ALL_CLOSED, smaller=smaller)
    return Outlook(smaller=smaller)


def with_expected_start(
    outlook: Outlook, expected: ExpectedStart | InputError | None, now: float
) -> Outlook:
    """The outlook with Slurm's answer to `sbatch --test-only`; an InputError if Slurm refused the
    request, None if Slurm gave no answer."""
    if expected is None:
        return outlook
    if isinstance(expected, InputError):
        return replace(outlook, problems={"": expected.message})
    if is_at_once(expected.starts_at, now):
        return replace(outlook, starts_now=True)
    return replace(outlook, starts_at=expected.starts_at)


def is_at_once(starts_at: float, now: float) -> bool:
    """Whether the start that Slurm expects is now: it knows more than the snapshot."""
    return starts_at <= now + AT_ONCE_SECONDS


def all_problems(
    request: ResourceRequest,
    snapshot: Snapshot,
    user: SlurmUser,
    now: float,
    max_nodes: int | None = None,
) -> Problems:
    """What cluster, site and the user's rights could not give even if nothing else ran."""
    return {
        **user_limits.user_problems(request, snapshot, user, now),
        **cluster_problems(request, snapshot, max_nodes),
    }


def cluster_problems(
    request: ResourceRequest, snapshot: Snapshot, max_nodes: int | None = None
) -> Problems:
    """What the partition and its nodes could not give even if they were empty; not the time."""
    partition = snapshot.partition(request.partition)
    if partition is None or partition.hidden:
        names = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        return {"partition": f"there is no partition {request.partition}; there are {names}"}
    problems: Problems = {}
    if not partition.up:
        state = partition.state.lower()
        problems["partition"] = f"{partition.name} takes no jobs now (it is {state})"
    for limit, source in ((partition.max_nodes, partition.name), (max_nodes, "this site")):
        if limit is not None and request.nodes > limit:
            problems["nodes"] = f"{source} allows at most {format_amount('node', limit)}"
    if request.nodes < partition.min_nodes:
        least = format_amount("node", partition.min_nodes)
        problems["nodes"] = f"{partition.name} takes jobs of at least {least}"
    return {
        **problems,
        **_size_problems(request, snapshot),
        **_partition_size_problems(request, partition),
    }


def _partition_size_problems(request: ResourceRequest, partition: Partition) -> Problems:
    """More on a node than the partition allows there: MaxCPUsPerNode and MaxMemPerNode."""
    problems: Problems = {}
    max_cpus, max_bytes = partition.max_cpus_per_node, partition.max_memory_per_node_bytes
    if max_cpus and taken_cpus(request, partition) > max_cpus:
        cores = format_amount("cpu", max_cpus)
        if request.cpus > max_cpus:
            problems["cpus"] = f"{partition.name} allows at most {cores} on a node"
        else:
            each = format_bytes(partition.max_memory_per_cpu_bytes or 0)
            message = f"{partition.name} allows {each} for each core and {cores} on a node"
            problems["memory_gb"] = message
    if max_bytes and request.memory_bytes > max_bytes:
        limit = format_bytes(max_bytes)
        problems["memory_gb"] = f"{partition.name} allows at most {limit} on a node"
    return problems


def taken_cpus(request: ResourceRequest, partition: Partition | None) -> int:
    """Cores on each node: Slurm adds some where the memory exceeds MaxMemPerCPU for each core."""
    limit = partition.max_memory_per_cpu_bytes if partition else None
    return max(request.cpus, -(-request.memory_bytes // limit)) if limit else request.cpus


def _size_problems(request: ResourceRequest, snapshot: Snapshot) -> Problems:
    """More on a node than any node has, even empty."""
    partition, kind = request.partition, request.gpu_type
    nodes = tuple(n for n in snapshot.nodes_in(partition) if has_features(n, request.constraint))
    if request.constraint and not nodes:
        names = ", ".join(features(snapshot, partition)) or "none"
        return {"constraint": f"no node of {partition} has these features; there are {names}"}
    if kind:
        types = sorted(name for name in snapshot.gpus_total(partition) if name)
        if kind not in types:
            return {"gpu_type": f"{partition} has {', '.join(types) or 'no GPUs'}"}
    nodes_text = f"{partition} with {request.constraint}" if request.constraint else partition
    cpus = taken_cpus(request, snapshot.partition(partition))
    max_gpus = max((_gpus(node.gpus, kind) for node in nodes), default=0)
    if request.gpus > max_gpus:
        if not max_gpus:
            return {"gpus": f"{nodes_text} has no GPUs{f' of type {kind}' if kind else ''}"}
        most = format_amount(f"gres/gpu:{kind}", max_gpus)
        return {"gpus": f"a node of {nodes_text} has at most {most}"}
    nodes = tuple(node for node in nodes if _gpus(node.gpus, kind) >= request.gpus)
    max_cpus = max((node.cpus for node in nodes), default=0)
    max_bytes = max((node.memory_bytes for node in nodes), default=0)
    problems: Problems = {}
    if cpus > max_cpus:
        most = format_amount("cpu", max_cpus)
        problems["cpus"] = f"a node of {nodes_text} has at most {most}"
        if request.cpus <= max_cpus:
            problems["cpus"] += f", and this much memory takes {cpus}"
    if request.memory_bytes > max_bytes:
        problems["memory_gb"] = f"a node of {nodes_text} has at most {format_bytes(max_bytes)}"
    enough = sum(node.cpus >= cpus and node.memory_bytes >= request.memory_bytes for node in nodes)
    if not problems and request.nodes > enough:
        count = format_amount("node", enough)
        problems["nodes"] = f"{nodes_text} has {count} with enough GPUs, cores and memory"
    return problems


def starts_now(request: ResourceRequest, snapshot: Snapshot, now: float) -> bool:
    """Whether enough open nodes have all of this free, and no reservation comes in between."""
    cpus = taken_cpus(request, snapshot.partition(request.partition))
    fitting = sum(
        _gpus(node.gpus_free, request.gpu_type) >= request.gpus
        and node.cpus_free >= cpus
        and node.memory_free_bytes >= request.memory_bytes
        for node in usable_nodes(request, snapshot, now)
    )
    return fitting >= request.nodes


def smaller_request(
    request: ResourceRequest, snapshot: Snapshot, now: float
) -> dict[str, int] | None:
    """The largest part of the request that a node has free now; None if it would be of no use."""
    partition = snapshot.partition(request.partition)
    per_cpu = partition.max_memory_per_cpu_bytes if partition else None
    best: dict[str, int] | None = None
    for node in usable_nodes(request, snapshot, now):
        free_bytes = node.memory_free_bytes
        if per_cpu:
            free_bytes = min(free_bytes, node.cpus_free * per_cpu)
        fitting_part = {
            "gpus": min(request.gpus, _gpus(node.gpus_free, request.gpu_type)),
            "cpus": min(request.cpus, node.cpus_free),
            "memory_gb": min(request.memory_gb, free_bytes // GIB),
        }
        is_useful = fitting_part["cpus"] >= 1 and fitting_part["memory_gb"] >= 1
        if not is_useful or (request.gpus and not fitting_part["gpus"]):
            continue
        if best is None or tuple(fitting_part.values()) > tuple(best.values()):
            best = fitting_part
    if best is not None and request.nodes > 1:
        best["nodes"] = 1
    return best


def usable_nodes(request: ResourceRequest, snapshot: Snapshot, now: float) -> list[Node]:
    """The open nodes of the partition that no other reservation takes before the job's end."""
    partition = snapshot.partition(request.partition)
    if partition is None or not partition.up:
        return []
    chosen = _reservation(request, snapshot)
    if request.reservation and (chosen is None or (chosen.starts_at or 0) > now):
        return []
    end = now + request.seconds
    reserved = {
        name
        for reservation in snapshot.reservations
        if reservation.name != request.reservation
        and (reservation.starts_at or 0) < end
        and (reservation.ends_at is None or reservation.ends_at > now)
        for name in reservation.nodes
    }
    nodes = eligible_nodes(request, snapshot)
    if chosen:
        # Its users may use these nodes although they are reserved.
        nodes = tuple(
            node.model_copy(update={"flags": tuple(f for f in node.flags if f != "RESERVED")})
            for node in nodes
        )
    return [node for node in nodes if node.open and node.name not in reserved]


def eligible_nodes(request: ResourceRequest, snapshot: Snapshot) -> tuple[Node, ...]:
    """The nodes, open or closed, that partition, reservation and constraint leave to a request."""
    chosen = _reservation(request, snapshot)
    return tuple(
        node
        for node in snapshot.nodes_in(request.partition)
        if has_features(node, request.constraint) and (not chosen or node.name in chosen.nodes)
    )


def features(snapshot: Snapshot, partition: str) -> list[str]:
    """The features that nodes of the partition have."""
    return sorted({name for node in snapshot.nodes_in(partition) for name in node.features})


def has_features(node: Node, constraint: str) -> bool:
    """Whether the node meets the constraint. Slurm reads it from left to right: & does not bind
    tighter than |."""
    first, *rest = re.split(r"([&|])", constraint)
    is_met = not first or first in node.features
    for operator, name in zip(rest[::2], rest[1::2], strict=True):
        has = name in node.features
        is_met = (is_met and has) if operator == "&" else (is_met or has)
    return is_met


def _reservation(request: ResourceRequest, snapshot: Snapshot) -> Reservation | None:
    named = (item for item in snapshot.reservations if item.name == request.reservation)
    return next(named, None) if request.reservation else None


def _gpus(gpus: Gpus, kind: str) -> int:
    return gpus.get(kind, 0) if kind else sum(gpus.values())
