"""A simulated timeline sampled as an exporter would, for `carme.jobs.bursts`."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESOURCES = ("gpu_utilization", "gpu_memory_utilization", "network_sent", "network_received")


def sample(
    begin: Floats, end: Floats, level: Floats, length: float, period_seconds: float
) -> Floats:
    """A series of period means from intervals that do not overlap: `level` between begin and end.

    What an exporter reads is a mean over its period, too: a share of busy time, or bytes counted.
    """
    grid = np.arange(0, max(round(length / period_seconds), 1) + 1) * period_seconds
    if not len(begin):
        return np.zeros(len(grid) - 1)
    order = np.argsort(begin, kind="stable")
    begin, end, level = begin[order], end[order], level[order]
    times = np.column_stack([begin, end]).ravel()
    amounts = np.column_stack([np.zeros_like(level), level * (end - begin)]).ravel()
    total = np.interp(grid, times, np.cumsum(amounts), left=0.0)
    return np.asarray(np.diff(total) / period_seconds)
