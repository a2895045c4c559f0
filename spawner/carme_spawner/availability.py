"""What is free now, for the panel beside the form: pure functions of a snapshot."""

from typing import Any

from carme.requests.resource_request import GIB
from carme.slurm.models import Node, Reservation
from carme.slurm.snapshot import Snapshot

NEAR_SECONDS = 24 * 3600
"""Maintenance within this time is announced."""


class AvailabilityPanel:
    """The panel beside the form: free resources, closed nodes and waiting jobs per partition.

    Nodes are counted once per snapshot, not once per request.
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
