"""Power: the draw of a GPU by its activity, and its clock under a power cap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carme.errors import InputError
from carme.simulator.hardware.cluster import Gpu

# Activity of a GPU that communicates or waits in a spinning kernel of a collective: between idle
# (0) and memory-bound kernels (0.75).
COMMUNICATION_ACTIVITY = 0.35
# A GPU at its cap draws a little less than the cap on average (ml-energy/zeus traces).
CAP_USED = 0.97


class CappedGpu(NamedTuple):
    """Clock and draw of a GPU under a power cap."""

    clock: float
    """Relative to the uncapped clock."""
    busy_watts: float
    """Draw while computing."""


def watts(gpu: Gpu, activity: float) -> float:
    """Draw at full clock with `activity` between idle (0) and large products (1)."""
    return gpu.power.idle_watts + (gpu.power.busy_watts - gpu.power.idle_watts) * activity


def check_cap(gpu: Gpu, cap_watts: float | None) -> None:
    """Raises InputError for a cap that the device does not accept."""
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
    uncapped_watts = watts(gpu, activity)
    if uncapped_watts <= idle:
        return CappedGpu(1.0, uncapped_watts)
    xs, clocks = zip(*gpu.power.cap_curve, strict=True)
    headroom = np.array([max(cap - idle, 0.0), limit - idle]) / (uncapped_watts - idle)
    clock, default_clock = np.interp(headroom, xs, clocks)
    return CappedGpu(
        clock=float(max(clock / default_clock, 0.05)),
        busy_watts=max(min(uncapped_watts, CAP_USED * cap), idle),
    )


def wait_watts(gpu: Gpu, cap_watts: float | None) -> float:
    """Draw while communicating or waiting in a collective, at most the cap."""
    return under_cap(gpu, COMMUNICATION_ACTIVITY, cap_watts).busy_watts
