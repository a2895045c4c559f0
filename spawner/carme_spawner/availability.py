"""What is free now, and what that means for a choice: pure functions of a snapshot."""

from typing import Any

from carme.slurm.models import Node, Reservation
from carme.slurm.snapshot import Snapshot
from carme_spawner.options import GIB, Options

NEAR_SECONDS = 24 * 3600
"""Maintenance within this time is announced."""


class AvailabilityPanel:
    """For the panel beside the form: per partition what is free, what is down, who waits.

    A thousand nodes are counted once a snapshot, not once for everybody who looks.
    """

    def __init__(self) -> None:
        self._counted: tuple[Snapshot, list[dict[str, Any]]] | None = None

    def of(self, snapshot: Snapshot, now: float) -> dict[str, Any]:
        """The panel's figures."""
        if self._counted is None or self._counted[0] is not snapshot:
            shown = (partition for partition in snapshot.partitions if not partition.hidden)
            self._counted = (snapshot, [_partition(snapshot, p.name) for p in shown])
        return {
            "age_seconds": round(snapshot.age_seconds(now), 1),
            "controller": snapshot.controller,
            "partitions": self._counted[1],
            "maintenance": [
                _announcement(plan, snapshot) for plan in _maintenance(snapshot, now, NEAR_SECONDS)
            ],
        }


def _announcement(plan: Reservation, snapshot: Snapshot) -> dict[str, Any]:
    taken = set(plan.nodes)
    concerned = {name for node in snapshot.nodes if node.name in taken for name in node.partitions}
    return {
        "name": plan.name,
        "starts_at": plan.starts_at,
        "ends_at": plan.ends_at,
        "nodes": len(plan.nodes),
        "partitions": sorted(concerned),
    }


def _partition(snapshot: Snapshot, name: str) -> dict[str, Any]:
    nodes = snapshot.nodes_in(name)
    partition = snapshot.partition(name)
    total, free = snapshot.gpus_total(name), snapshot.gpus_free(name)
    block = snapshot.largest_free_block(name)
    largest = max(nodes, key=_size, default=None)
    load = snapshot.load.get(name)
    return {
        "name": name,
        "up": bool(partition and partition.up),
        "max_seconds": partition.max_seconds if partition else None,
        "gpus": [
            {"type": kind, "total": count, "free": free.get(kind, 0), "block": block.get(kind, 0)}
            for kind, count in sorted(total.items())
        ],
        "cpus_free": sum(node.cpus_free for node in nodes),
        "cpus_total": sum(node.cpus for node in nodes),
        "memory_free_gb": sum(node.memory_free_bytes for node in nodes) // GIB,
        "memory_total_gb": sum(node.memory_bytes for node in nodes) // GIB,
        "nodes_total": len(nodes),
        "nodes_down": [node.name for node in nodes if not node.open],
        "waiting": load.waiting if load else 0,
        "largest": {
            "gpus": sum(largest.gpus.values()),
            "cpus": largest.cpus,
            "memory_gb": largest.memory_bytes // GIB,
        }
        if largest
        else None,
    }


def _size(node: Node) -> tuple[int, int, int]:
    return (sum(node.gpus.values()), node.cpus, node.memory_bytes)


def _maintenance(snapshot: Snapshot, now: float, within: float) -> list[Reservation]:
    return [
        plan
        for plan in snapshot.reservations
        if plan.maintenance
        and (plan.starts_at or 0) < now + within
        and (plan.ends_at is None or plan.ends_at > now)
    ]


def starts_now(options: Options, snapshot: Snapshot, now: float) -> bool:
    """Whether enough open nodes have all of this free, and no reservation comes in between."""
    fitting = sum(
        _gpus(node.gpus_free, options.gpu_type) >= options.gpus
        and node.cpus_free >= options.cpus
        and node.memory_free_bytes >= options.memory_gb * GIB
        for node in _usable(options, snapshot, now)
    )
    return fitting >= options.nodes


def closed(options: Options, snapshot: Snapshot, now: float) -> bool:
    """Whether no node of the partition takes this session now, however small it were."""
    return not _usable(options, snapshot, now)


def smaller(options: Options, snapshot: Snapshot, now: float) -> dict[str, int] | None:
    """The largest part of the choice that a node has free now; None if that is nothing useful."""
    best: dict[str, int] | None = None
    for node in _usable(options, snapshot, now):
        part = {
            "gpus": min(options.gpus, _gpus(node.gpus_free, options.gpu_type)),
            "cpus": min(options.cpus, node.cpus_free),
            "memory_gb": min(options.memory_gb, node.memory_free_bytes // GIB),
        }
        enough = part["cpus"] >= 1 and part["memory_gb"] >= 1
        if not enough or (options.gpus and not part["gpus"]):
            continue
        if best is None or tuple(part.values()) > tuple(best.values()):
            best = part
    if best is not None and options.nodes > 1:
        best["nodes"] = 1
    return best


def reservation(options: Options, snapshot: Snapshot) -> Reservation | None:
    """The reservation that the choice names."""
    named = (plan for plan in snapshot.reservations if plan.name == options.reservation)
    return next(named, None) if options.reservation else None


def _usable(options: Options, snapshot: Snapshot, now: float) -> list[Node]:
    """The open nodes of the partition that nothing takes away before the session's end."""
    partition = snapshot.partition(options.partition)
    if partition is None or not partition.up:
        return []
    chosen = reservation(options, snapshot)
    if options.reservation and (chosen is None or (chosen.starts_at or 0) > now):
        return []
    end = now + options.seconds
    taken = {
        name
        for plan in snapshot.reservations
        if plan.name != options.reservation
        and (plan.starts_at or 0) < end
        and (plan.ends_at is None or plan.ends_at > now)
        for name in plan.nodes
    }
    nodes = snapshot.nodes_in(options.partition)
    if chosen:
        nodes = tuple(_admitting(node) for node in nodes if node.name in chosen.nodes)
    return [node for node in nodes if node.open and node.name not in taken]


def _admitting(node: Node) -> Node:
    """The node as those see it whom its reservation is for."""
    flags = tuple(flag for flag in node.flags if flag != "RESERVED")
    return node.model_copy(update={"flags": flags})


def _gpus(free: dict[str, int], kind: str) -> int:
    return free.get(kind, 0) if kind else sum(free.values())
