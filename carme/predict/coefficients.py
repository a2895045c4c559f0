"""What a fit may change in the simulator, within bounds, and what that does to hardware."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carme.predict.estimates import FrozenModel, Spread
from carme.simulator.hardware.cluster import Cluster, LinkModel
from carme.simulator.workloads.workload import Workload

Source = Literal["data sheet", "fit", "history"]

UNCALIBRATED_TIME = Spread.within(2.0)
UNCALIBRATED_POWER = Spread.within(1.4)
"""Data sheets alone: what the simulator's own comparison with published runs shows at worst."""

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
    """Times are multiplied: `compute` = 2 means that products take twice what the data sheet
    promises."""

    compute: Annotated[float, _bounded("compute")] = 1.0
    """Time of dense products."""
    memory: Annotated[float, _bounded("memory")] = 1.0
    """Time of what memory bandwidth limits, the optimizer's update among it."""
    network: Annotated[float, _bounded("network")] = 1.0
    """Time of collectives."""
    power: Annotated[float, _bounded("power")] = 1.0
    """Draw above idle."""
    overhead_seconds: Annotated[float, _bounded("overhead_seconds")] = 0.0
    """Host time a step that nothing hides."""
    shared_compute: Annotated[float, _bounded("shared_compute")] = 0.0
    """How much slower each doubling of the workers on a node makes their kernels, as a share."""
    shared_update: Annotated[float, _bounded("shared_update")] = 0.0
    """The same for the optimizer's update."""

    def apply(self, workload: Workload, cluster: Cluster) -> tuple[Workload, Cluster]:
        """The workload and the hardware as these coefficients see them."""
        gpu = cluster.node.gpu
        power = gpu.power
        above = self.power * (power.busy_watts - power.idle_watts)
        busy = power.idle_watts + above
        changed = gpu.model_copy(
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
                "gpu": changed,
                "gpu_link": self._slower(cluster.node.gpu_link),
                "network": self._slower(cluster.node.network),
                "collective_seconds": cluster.node.collective_seconds * self.network,
                "shared_compute": cluster.node.shared_compute + self.shared_compute,
                "shared_update": cluster.node.shared_update + self.shared_update,
            }
        )
        seen = workload
        if self.overhead_seconds:  # a copy would compute the layers' costs once more
            overhead = workload.step_overhead_seconds + self.overhead_seconds
            seen = workload.model_copy(update={"step_overhead_seconds": overhead})
        return seen, cluster.model_copy(update={"node": node})

    def _slower(self, link: LinkModel) -> LinkModel:
        return link.model_copy(
            update={
                "bandwidth": link.bandwidth / self.network,
                "latency_seconds": link.latency_seconds * self.network,
            }
        )


class Provenance(FrozenModel):
    """Where coefficients come from, for whoever has to trust them."""

    source: Source = "data sheet"
    calibrated: bool = False
    words: str = "uncalibrated: data sheets only, so the interval is wide"
    calibration: str | None = None
    """The id of the calibration, if there is one."""
    steps: int = 0
    batches: tuple[int, ...] = ()
    """Global batches that were measured."""
    workers: tuple[int, ...] = ()
    """GPU counts that were measured."""
    points: tuple[tuple[int, int], ...] = ()
    """The pairs of batch and GPU count that were measured; unset in fits kept by older releases."""
    unseen: tuple[str, ...] = ()
    """Coefficients that the measurements say nothing about: the data sheet's."""


class Calibration(FrozenModel):
    """Coefficients with what is known about their error."""

    coefficients: Coefficients = Coefficients()
    provenance: Provenance = Provenance()
    time: Spread = UNCALIBRATED_TIME
    power: Spread = UNCALIBRATED_POWER


DATA_SHEET = Calibration()
