"""Power: what a GPU draws while it does something, and how a cap slows its clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.errors import InputError
from carme.simulator.hardware.cluster import Gpu

# Of the draw above idle in dense products, what a GPU takes that moves data for a collective or
# waits in a spinning kernel. Between idle (0) and memory-bound kernels (0.75).
COMMUNICATION_ACTIVITY = 0.35
# A GPU at its cap draws a little less than the cap on average (ml-energy/zeus traces).
CAP_USED = 0.97


class CappedGpu(NamedTuple):
    """A GPU under a cap."""

    clock: float
    """Relative to the uncapped clock."""
    busy_watts: float
    """Drawn while computing with the given activity."""


def watts(gpu: Gpu, activity: float) -> float:
    """Draw at full clock with `activity` between idle (0) and dense products (1)."""
    return gpu.power.idle_watts + (gpu.power.busy_watts - gpu.power.idle_watts) * activity


def check_cap(gpu: Gpu, cap_watts: float | None) -> None:
    """Refuse a cap that the device would refuse."""
    power = gpu.power
    if cap_watts is not None and not power.minimum_watts <= cap_watts <= power.limit_watts:
        raise InputError(
            f"a power cap of {cap_watts:g} W on {gpu.name}",
            f"it takes {power.minimum_watts:g} to {power.limit_watts:g} W",
        )


def under_cap(gpu: Gpu, activity: float, cap_watts: float | None) -> CappedGpu:
    """Clock, relative to that at the default limit, and draw while computing with `activity`."""
    idle, limit = gpu.power.idle_watts, gpu.power.limit_watts
    cap = limit if cap_watts is None else cap_watts
    wanted = watts(gpu, activity)
    if wanted <= idle:
        return CappedGpu(1.0, wanted)
    xs, clocks = zip(*gpu.power.cap_curve, strict=True)
    left = np.array([max(cap - idle, 0.0), limit - idle]) / (wanted - idle)
    clock, uncapped = np.interp(left, xs, clocks)
    return CappedGpu(float(max(clock / uncapped, 0.05)), max(min(wanted, CAP_USED * cap), idle))


def wait_watts(gpu: Gpu, cap_watts: float | None) -> float:
    """Draw while it communicates or waits in a collective; a cap holds then, too."""
    return under_cap(gpu, COMMUNICATION_ACTIVITY, cap_watts).busy_watts
