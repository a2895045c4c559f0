"""The cluster now, in counts."""

from __future__ import annotations

from typing import Literal

from carme.predict.estimates import FrozenModel


class GpuCount(FrozenModel):
    type: str
    total: int
    free: int
    largest_block: int


class PartitionItem(FrozenModel):
    name: str
    up: bool
    max_seconds: int | None
    gpus: tuple[GpuCount, ...]
    cpus_free: int
    cpus_total: int
    waiting: int
    running: int


class ClusterAnswer(FrozenModel):
    """The cluster now: counts, nobody's names."""

    name: str
    title: str
    taken_at: float
    controller: Literal["up", "away"]
    error: str
    partitions: tuple[PartitionItem, ...]
    nodes_open: int
    nodes_closed: int
