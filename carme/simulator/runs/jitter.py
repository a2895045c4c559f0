"""Jitter: factors by which workers' compute times differ, from step to step and for a whole run.

The logarithm of a factor has three parts. One stays with the worker for the whole run: the
stragglers. One drifts, so that a slow step follows a slow step. One is independent. Drift and
independent part together are an ARMA(1, 1) process, so each factor takes one random number.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np

from carme.simulator.plans import BasePlan
from carme.simulator.workload import Floats

CHUNK = 2_000_000
"""Factors that are held in memory at a time."""


class Jitter(NamedTuple):
    """Spread of workers' compute times, and how long a worker stays slow or fast."""

    cv: float = 0.0
    """Coefficient of variation of a log-normal with mean 1."""
    samples: tuple[float, ...] = ()
    """Relative times to draw from, instead of the log-normal."""
    persistent: float = 0.0
    """Share of the variance that stays with a worker for the whole run."""
    drift: float = 0.0
    """Share of the variance that drifts."""
    correlation: float = 0.0
    """Of the drift in one step with that in the next."""

    @classmethod
    def of(cls, plan: BasePlan) -> Jitter:
        """The jitter of a plan."""
        return cls(
            cv=plan.jitter,
            samples=plan.jitter_samples,
            persistent=plan.jitter_persistent,
            drift=plan.jitter_drift,
            correlation=plan.jitter_correlation,
        )

    def factors(self, steps: int, workers: int, rng: np.random.Generator) -> Floats:
        """Factor [k, w] of step k and worker w, with mean 1; all ones without jitter."""
        if not self:
            return np.ones((steps, workers))
        return self._factors(np.concatenate(list(self._normals(steps, workers, rng))))

    def slowest(self, steps: int, workers: int, rng: np.random.Generator) -> Floats:
        """The largest of each step's `factors`, without holding all of them in memory."""
        if not self:
            return np.ones(steps)
        # Factors grow with their normals, so it is enough to turn the maxima into factors.
        maxima = [chunk.max(axis=1) for chunk in self._normals(steps, workers, rng)]
        return self._factors(np.concatenate(maxima))

    def __bool__(self) -> bool:
        return bool(self.cv or self.samples)

    def _factors(self, normals: Any) -> Floats:
        normals = normals.astype(float)
        if not self.samples:
            mu, sigma = lognormal(self.cv)
            return np.asarray(np.exp(mu + sigma * normals))
        from scipy.special import ndtr

        samples = np.sort(self.samples)
        places = (ndtr(normals) * len(samples)).astype(int)
        return np.asarray((samples / samples.mean())[np.minimum(places, len(samples) - 1)])

    def _normals(self, steps: int, workers: int, rng: np.random.Generator) -> Iterator[Any]:
        """Standard normals [k, w] with the correlations of this jitter, some steps at a time."""
        level = rng.standard_normal(workers) * sqrt(self.persistent)
        if workers > 1:
            # Around their mean: fast ones make up for slow ones in the mean, never in a step.
            level = (level - level.mean()) * sqrt(workers / (workers - 1))
        echo, innovation = self._process()
        # The first step is one of the stationary process.
        last = innovation * rng.standard_normal(workers)
        drift = last + sqrt(1 - innovation**2) * rng.standard_normal(workers)
        rows = max(1, CHUNK // workers)
        for begin in range(0, steps, rows):
            noise = rng.standard_normal((min(rows, steps - begin), workers), dtype=np.float32)
            if self.persistent or self.drift:
                from carme.simulator.events.compiled_jitter import add_drift

                process = (self.correlation, echo, innovation, sqrt(1 - self.persistent))
                add_drift(noise, level, drift, last, *process)
            yield noise

    def _process(self) -> tuple[float, float]:
        """Weight of the last innovation, and size of an innovation, of the ARMA(1, 1) process with
        variance 1 whose autocorrelation at lag n is (drift's share) x correlation^n."""
        rest = 1 - self.persistent
        share, r = (self.drift / rest if rest > 0 else 0.0), self.correlation
        if r == 0 or share == 0:
            return -r, 1.0
        # share r = (1 + echo r) (r + echo) / (1 + 2 echo r + echo²), the root below 1
        a, b = r * (share - 1), 2 * share * r * r - 1 - r * r
        echo = 0.0 if a == 0 else (-b - sqrt(max(b * b - 4 * a * a, 0.0))) / (2 * a)
        variance = (1 + 2 * echo * r + echo * echo) / (1 - r * r)
        return echo, 1 / sqrt(variance)


def lognormal(cv: float) -> tuple[float, float]:
    """μ and σ of the log-normal with mean 1 and this coefficient of variation."""
    variance = log(1 + cv * cv)
    return -variance / 2, sqrt(variance)


def lognormal_factors(cv: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Independent factors with mean 1 and this coefficient of variation; all ones if it is 0."""
    if not cv:
        return np.ones(shape)
    mu, sigma = lognormal(cv)
    return np.asarray(np.exp(mu + sigma * rng.standard_normal(shape)))
