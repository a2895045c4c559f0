"""Drift of workers' speeds, compiled by Numba: a run draws millions of factors."""

from __future__ import annotations

from typing import Any

from carme.simulator.compilation import compiled
from carme.simulator.workload import Floats


@compiled
def add_drift(
    noise: Any,
    level: Floats,
    drift: Floats,
    last: Floats,
    correlation: float,
    echo: float,
    innovation: float,
    weight: float,
) -> None:
    """Turn independent noise[k, w] into level[w] + weight x drift of worker w in step k.

    The drift is an ARMA(1, 1) process: `correlation` x the drift before + this step's innovation +
    `echo` x the one before. `drift` and `last` keep its state between calls.
    """
    steps, workers = noise.shape
    for k in range(steps):
        for w in range(workers):
            new = innovation * noise[k, w]
            drift[w] = correlation * drift[w] + new + echo * last[w]
            last[w] = new
            noise[k, w] = level[w] + weight * drift[w]
