"""Mini-batch size and staleness of asynchronous SGD (SPRINT), by a closed form and by events.

GPU threads take T_GPU for a gradient of N samples, the update threads T_Update for an update;
q = T_Update / T_GPU and r = 1 / q. The closed form assumes that phases are random:

    mini-batch = N · Σ over GPUs of (⌊q⌋ + Y),  Y ~ Bernoulli(q − ⌊q⌋)
    staleness  = ⌊r⌋ + 1 + Z,                   Z ~ Bernoulli(r − ⌊r⌋)

Staleness is the number of updates from reading the weights to the update that applies the
gradient, that one included: hence the 1. The event simulation counts the same updates. Without
jitter its phases lock, so it differs from the closed form, which assumes random phases.
"""

from __future__ import annotations

from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.costs.jitter import lognormal
from carme.simulator.plans.plan import require

MOST_GRADIENTS = 5_000_000
"""Limit of a simulated run: two seconds and some hundred megabytes."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Distribution(NamedTuple):
    """Values and how often each occurs, as shares that sum to 1."""

    values: Floats
    shares: Floats

    @classmethod
    def of(cls, samples: Ints | Floats) -> Distribution:
        values, counts = np.unique(np.asarray(samples, dtype=float), return_counts=True)
        return cls(values, counts / counts.sum())

    @property
    def mean(self) -> float:
        return float(self.values @ self.shares)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(((self.values - self.mean) ** 2) @ self.shares))


class AsyncStatistics(NamedTuple):
    """Seconds of an epoch, and the distributions that the quality of training depends on."""

    epoch_seconds: float
    mini_batch: Distribution
    staleness: Distribution


def closed_form(
    gradient_seconds: float, update_seconds: float, gpus: int, sub_batch: int, samples: int
) -> AsyncStatistics:
    """Oyama et al. 2016: random phases, constant times."""
    q = update_seconds / gradient_seconds
    r = 1 / q
    share = q - floor(q)
    extra = np.arange(gpus + 1)
    mini_batch = sub_batch * (gpus * floor(q) + extra)
    later = r - floor(r)
    return AsyncStatistics(
        samples * gradient_seconds / (gpus * sub_batch),
        Distribution(mini_batch.astype(float), _binomial(gpus, share)),
        Distribution(np.array([floor(r) + 1.0, floor(r) + 2.0]), np.array([1 - later, later])),
    )


def simulate_staleness(
    gradient_seconds: float,
    update_seconds: float,
    gpus: int,
    sub_batch: int,
    samples: int,
    *,
    jitter: float = 0.0,
    update_jitter: float = 0.0,
    updates: int = 2000,
    seed: int = 0,
) -> AsyncStatistics:
    """The statistics of a simulated run: every gradient of `updates` updates."""
    rng = np.random.default_rng(seed)
    update = update_seconds * _factors(rng, update_jitter, (updates,))
    rounds = float(update.sum()) / gradient_seconds * 1.1 + 10
    require(
        gpus * rounds <= MOST_GRADIENTS,
        f"{gpus * rounds:,.0f} gradients in {updates:,} updates",
        f"at most {MOST_GRADIENTS:,}: lower sample_steps, or is one of the times in another unit?",
    )
    gradient = gradient_seconds * _factors(rng, jitter, (gpus, int(rounds)))
    return staleness_statistics(gradient, update, sub_batch, samples)


def staleness_statistics(
    gradient: Floats, update: Floats, sub_batch: int, samples: int
) -> AsyncStatistics:
    """Statistics of the durations gradient[w, k] and update[u], all starting at 0."""
    ends = np.cumsum(gradient, axis=1)
    starts = ends - gradient
    updated = np.cumsum(update)
    inside = ends <= updated[-1]
    # A gradient is applied by the first update that ends when the gradient does, or later.
    applied = np.searchsorted(updated, ends[inside], side="left")
    read = np.searchsorted(updated, starts[inside], side="right")
    mini_batch = np.bincount(applied, minlength=len(updated)) * sub_batch
    # The first updates have fewer gradients: leave them out.
    settled = max(len(updated) // 20, 1) if len(updated) > 20 else 0
    late = applied >= settled
    rate = inside.sum() * sub_batch / updated[-1]
    return AsyncStatistics(
        float(samples / rate) if rate else float("inf"),
        Distribution.of(mini_batch[settled:]),
        Distribution.of((applied - read + 1)[late]),
    )


def _factors(rng: np.random.Generator, cv: float, shape: tuple[int, ...]) -> Floats:
    if not cv:
        return np.ones(shape)
    mu, sigma = lognormal(cv)
    result: Floats = np.exp(mu + sigma * rng.standard_normal(shape))
    return result


def _binomial(n: int, p: float) -> Floats:
    """P(k) for k = 0..n, by the recurrence, in logarithms: n may be thousands."""
    if p <= 0 or p >= 1:
        shares = np.zeros(n + 1)
        shares[0 if p <= 0 else n] = 1.0
        return shares
    k = np.arange(1, n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k * p / (1 - p)))])
    shares = np.exp(logs - logs.max())
    result: Floats = shares / shares.sum()
    return result
