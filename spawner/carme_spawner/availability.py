"""What is free now, for the panel beside the form: pure functions of a snapshot."""

from typing import Any

from carme.requests.resource_request import GIB
from carme.slurm.models import Partition, Reservation
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
            self._counted = (snapshot, [_partition(snapshot, p) for p in shown])
        return {
            "age_seconds": round(snapshot.age_seconds(now), 1),
            "controller": snapshot.controller,
            "partitions": self._counted[1],
            "maintenance": [
                _announcement(reservation, snapshot)
                for reservation in snapshot.reservations
                if reservation.maintenance
                and (reservation.starts_at or 0) < now + NEAR_SECONDS
                and (reservation.ends_at is None or reservation.ends_at > now)
            ],
        }


def _announcement(reservation: Reservation, snapshot: Snapshot) -> dict[str, Any]:
    reserved = set(reservation.nodes)
    nodes = [node for node in snapshot.nodes if node.name in reserved]
    return {
        "name": reservation.name,
        "starts_at": reservation.starts_at,
        "ends_at": reservation.ends_at,
        "nodes": len(reservation.nodes),
        "partitions": sorted({name for node in nodes for name in node.partitions}),
    }


def _partition(snapshot: Snapshot, partition: Partition) -> dict[str, Any]:
    name = partition.name
    nodes = snapshot.nodes_in(name)
    free, block = snapshot.gpus_free(name), snapshot.largest_free_block(name)
    sizes = [
        {"gpus": sum(n.gpus.values()), "cpus": n.cpus, "memory_gb": n.memory_bytes // GIB}
        for n in nodes
    ]
    load = snapshot.load.get(name)
    return {
        "name": name,
        "up": partition.up,
        "max_seconds": partition.max_seconds,
        "gpus": [
            {"type": kind, "total": count, "free": free.get(kind, 0), "block": block.get(kind, 0)}
            for kind, count in sorted(snapshot.gpus_total(name).items())
        ],
        "cpus_free": sum(node.cpus_free for node in nodes),
        "cpus_total": sum(node.cpus for node in nodes),
        "memory_free_gb": sum(node.memory_free_bytes for node in nodes) // GIB,
        "memory_total_gb": sum(node.memory_bytes for node in nodes) // GIB,
        "nodes_total": len(nodes),
        "nodes_down": [node.name for node in nodes if not node.open],
        "waiting": load.waiting if load else 0,
        "largest": max(sizes, key=lambda size: tuple(size.values()), default=None),
    }
