"""Bursts and idle times of a sampled series, by k-means with k = 2: twelve figures of a job.

The same code runs on simulated timelines and on what the exporter samples on a node (20 Hz or
faster: bursts last some tenths of a second), so prediction and measurement compare like with like.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESOURCES = ("gpu_utilization", "gpu_memory_utilization", "network_sent", "network_received")
STEADY = 0.02
"""Clusters closer than this share of the larger one are one: noise, not bursts."""


class Bursts(NamedTuple):
    """How a resource is used: amounts in the unit of the series, durations in seconds."""

    burst_seconds: float
    idle_seconds: float
    burst_amount: float
    idle_amount: float
    pattern: Literal["BIB", "B", "I"]
    """Bursts and idle times in turn, or only one of them."""


def two_means(values: Floats) -> tuple[float, float, float]:
    """The two cluster means of the best split, and the threshold between them.

    In one dimension the best clusters are a split of the sorted values, so all splits can be
    tried: no start values, no chance.
    """
    ordered = np.sort(values)
    n = len(ordered)
    if n < 2 or ordered[0] == ordered[-1]:
        return float(ordered[0]), float(ordered[0]), float(ordered[0])
    below = np.cumsum(ordered)[:-1]
    count = np.arange(1, n)
    total = ordered.sum()
    # Minimising the squared error is maximising the squared sums over the counts.
    score = below**2 / count + (total - below) ** 2 / (n - count)
    score[ordered[1:] == ordered[:-1]] = -np.inf  # equal values stay together
    split = int(np.argmax(score))
    low = below[split] / count[split]
    high = (total - below[split]) / (n - count[split])
    return float(low), float(high), float((ordered[split] + ordered[split + 1]) / 2)


def bursts(values: Floats, period_seconds: float) -> Bursts:
    """Mean lengths and levels of a series sampled every `period_seconds`."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if not len(values):
        return Bursts(0.0, 0.0, 0.0, 0.0, "I")
    low, high, threshold = two_means(values)
    length = len(values) * period_seconds
    if high - low <= STEADY * abs(high):
        mean = float(values.mean())
        return (
            Bursts(length, 0.0, mean, 0.0, "B") if mean > 0 else Bursts(0.0, length, 0.0, 0.0, "I")
        )
    busy = values > threshold
    return Bursts(
        _mean_run(busy, True) * period_seconds,
        _mean_run(busy, False) * period_seconds,
        float(values[busy].mean()),
        float(values[~busy].mean()),
        "BIB",
    )


def _mean_run(busy: NDArray[np.bool_], which: bool) -> float:
    """Mean number of samples in a run of `which`; runs cut by the ends count only if all are."""
    edges = np.flatnonzero(np.diff(busy)) + 1
    begins = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(busy)]])
    runs = (ends - begins)[busy[begins] == which]
    inner = (busy[begins] == which) & (begins > 0) & (ends < len(busy))
    whole = (ends - begins)[inner]
    return float((whole if len(whole) else runs).mean())


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
