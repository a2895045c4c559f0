"""Step times that were measured, between and beyond the batches they were measured at."""

from __future__ import annotations

import numpy as np

from carme.simulator.plans.plan import require
from carme.simulator.workloads.workload import Workload


def measured_seconds(workload: Workload, gpu: str, batch: float) -> float:
    """Compute time of a batch on this GPU: interpolated, and beyond the range on a fitted line."""
    points = sorted((m.batch, m.seconds) for m in workload.measured if m.gpu == gpu)
    known = sorted({m.gpu for m in workload.measured})
    require(
        bool(points), f"{workload.name} was not measured on {gpu}", f"it was on {', '.join(known)}"
    )
    sizes, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    if len(points) == 1:
        return float(seconds[0] * batch / sizes[0])
    if sizes[0] <= batch <= sizes[-1]:
        return float(np.interp(batch, sizes, seconds))
    slope, start = np.polyfit(sizes, seconds, 1)
    # A fitted line may cross zero below the smallest batch; time per sample never rises downwards.
    return float(max(start + slope * batch, seconds.min() * min(batch / sizes[0], 1.0)))
