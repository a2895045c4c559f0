"""Coefficients that a fit may change in the simulator, their bounds and their effect."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carme.predict.estimates import FrozenModel, Spread
from carme.simulator.hardware import Cluster, LinkModel
from carme.simulator.workload import Workload

Source = Literal["data sheet", "fit", "history"]

UNCALIBRATED_TIME = Spread.within(2.0)
UNCALIBRATED_POWER = Spread.within(1.4)
"""With data sheets alone: the largest errors of the simulator against published runs."""

BOUNDS: dict[str, tuple[float, float]] = {
    "compute": (0.01, 100.0),
    "memory": (0.01, 100.0),
    "network": (0.001, 100.0),
    "power": (0.2, 3.0),
    "overhead_seconds": (0.0, 60.0),
    "shared_compute": (0.0, 2.0),
    "shared_update": (0.0, 2.0),
}


def _bounded(name: str) -> object:
    low, high = BOUNDS[name]
    return Field(ge=low, le=high)


class Coefficients(FrozenModel):
    """Factors of times: `compute` = 2 means that matrix products take twice as long as by the data
    sheet."""

    compute: Annotated[float, _bounded("compute")] = 1.0
    """Time of matrix products."""
    memory: Annotated[float, _bounded("memory")] = 1.0
    """Time of memory-bound kernels, the optimizer's update included."""
    network: Annotated[float, _bounded("network")] = 1.0
    """Time of collectives."""
    power: Annotated[float, _bounded("power")] = 1.0
    """Draw above idle."""
    overhead_seconds: Annotated[float, _bounded("overhead_seconds")] = 0.0
    """Host time of each step that no kernel hides."""
    shared_compute: Annotated[float, _bounded("shared_compute")] = 0.0
    """Contention: slowdown of kernels with each doubling of the workers on a node, as a share."""
    shared_update: Annotated[float, _bounded("shared_update")] = 0.0
    """Contention in the optimizer's update."""

    def apply(self, workload: Workload, cluster: Cluster) -> tuple[Workload, Cluster]:
        """The workload and the hardware with these coefficients applied."""
        gpu = cluster.node.gpu
        power = gpu.power
        busy = power.idle_watts + self.power * (power.busy_watts - power.idle_watts)
        calibrated_gpu = gpu.model_copy(
            update={
                "peak_flops": {k: v / self.compute for k, v in gpu.peak_flops.items()},
                "memory_bandwidth": gpu.memory_bandwidth / self.memory,
                "power": power.model_copy(
                    update={"busy_watts": busy, "limit_watts": max(power.limit_watts, busy)}
                ),
            }
        )
        node = cluster.node.model_copy(
            update={
                "gpu": calibrated_gpu,
                "gpu_link": self._slower(cluster.node.gpu_link),
                "network": self._slower(cluster.node.network),
                "collective_seconds": cluster.node.collective_seconds * self.network,
                "shared_compute": cluster.node.shared_compute + self.shared_compute,
                "shared_update": cluster.node.shared_update + self.shared_update,
            }
        )
        if self.overhead_seconds:  # a copy computes the layers' costs again: make none without need
            overhead = workload.step_overhead_seconds + self.overhead_seconds
            workload = workload.model_copy(update={"step_overhead_seconds": overhead})
        return workload, cluster.model_copy(update={"node": node})

    def _slower(self, link: LinkModel) -> LinkModel:
        return link.model_copy(
            update={
                "bandwidth": link.bandwidth / self.network,
                "latency_seconds": link.latency_seconds * self.network,
            }
        )


class Provenance(FrozenModel):
    """Where coefficients come from."""

    source: Source = "data sheet"
    calibrated: bool = False
    words: str = "uncalibrated: data sheets only, so the interval is wide"
    calibration: str | None = None
    """The id of the stored calibration."""
    steps: int = 0
    batches: tuple[int, ...] = ()
    """Global batches that were measured."""
    workers: tuple[int, ...] = ()
    """GPU counts that were measured."""
    points: tuple[tuple[int, int], ...] = ()
    """The measured pairs of batch and GPU count; unset in fits stored by older releases."""
    unseen: tuple[str, ...] = ()
    """Coefficients that the measurements do not determine: those of the data sheet."""


class Calibration(FrozenModel):
    """Coefficients with their provenance and their uncertainty."""

    coefficients: Coefficients = Coefficients()
    provenance: Provenance = Provenance()
    time: Spread = UNCALIBRATED_TIME
    power: Spread = UNCALIBRATED_POWER


DATA_SHEET = Calibration()
