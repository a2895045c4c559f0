"""Jitter: random factors by which a worker's compute time varies from step to step."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from carme.simulator.plans.plan import BasePlan

Floats = NDArray[np.float64]

CHUNK = 2_000_000
"""Numbers drawn at a time: 16 MB, so that memory does not grow with the run."""


def lognormal(cv: float) -> tuple[float, float]:
    """μ and σ of the log-normal with mean 1 and this coefficient of variation."""
    variance = log(1 + cv * cv)
    return -variance / 2, sqrt(variance)


def jitter_factors(plan: BasePlan, steps: int, workers: int, rng: np.random.Generator) -> Floats:
    """Factor [k, w] of step k and worker w, with mean 1; all ones without jitter."""
    if plan.jitter_samples:
        samples = np.asarray(plan.jitter_samples)
        return rng.choice(samples / samples.mean(), (steps, workers))
    if not plan.jitter:
        return np.ones((steps, workers))
    mu, sigma = lognormal(plan.jitter)
    result: Floats = np.exp(mu + sigma * rng.standard_normal((steps, workers)))
    return result


def slowest_factors(plan: BasePlan, steps: int, workers: int, rng: np.random.Generator) -> Floats:
    """The largest of each step's `jitter_factors`, without holding all of them in memory."""
    if not plan.jitter and not plan.jitter_samples:
        return np.ones(steps)
    result = np.empty(steps)
    rows = max(1, CHUNK // workers)
    for begin in range(0, steps, rows):
        end = min(begin + rows, steps)
        if plan.jitter_samples:
            result[begin:end] = jitter_factors(plan, end - begin, workers, rng).max(axis=1)
        else:
            # exp is monotonic, so it is enough to take it of the maxima.
            result[begin:end] = rng.standard_normal((end - begin, workers)).max(axis=1)
    if plan.jitter_samples:
        return result
    mu, sigma = lognormal(plan.jitter)
    return np.exp(mu + sigma * result)
