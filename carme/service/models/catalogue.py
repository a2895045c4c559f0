"""Workloads and hardware that the service knows."""

from __future__ import annotations

from typing import Literal

from carme.predict.estimates import FrozenModel
from carme.simulator.workload import Workload


class WorkloadItem(FrozenModel):
    name: str
    title: str
    own: bool
    parameters: float
    forward_flops: float
    samples: int
    batch: int
    user: str | None = None


class WorkloadPage(FrozenModel):
    items: tuple[WorkloadItem, ...]
    next: str | None = None


class WorkloadAnswer(FrozenModel):
    own: bool
    workload: Workload


class HardwareItem(FrozenModel):
    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    memory_bytes: float
    peak_flops: dict[str, float]
    idle_watts: float
    limit_watts: float
    here: tuple[str, ...]
    """Slurm's names of it on this cluster."""


class HardwareList(FrozenModel):
    items: tuple[HardwareItem, ...]
    notes: tuple[str, ...] = ()
