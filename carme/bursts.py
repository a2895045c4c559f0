"""Bursts and idle times of a sampled series, by k-means with k = 2.

The same code runs on simulated timelines and on the exporter's samples of a node (20 Hz: bursts
last some tenths of a second), so that predictions and measurements can be compared. It does not use
NumPy, which would take half of the exporter's memory.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Literal, NamedTuple

STEADY = 0.02
"""If two clusters differ by less than this share of the larger one, that is noise, not bursts."""


class Bursts(NamedTuple):
    """How a resource is used: levels in the unit of the series, durations in seconds."""

    burst_seconds: float
    idle_seconds: float
    burst_amount: float
    idle_amount: float
    pattern: Literal["BIB", "B", "I"]
    """Bursts and idle times in turn, or only one of them."""


def two_means(values: Sequence[float]) -> tuple[float, float, float]:
    """The two cluster means of the best split, and the threshold between them.

    In one dimension the best clusters are a split of the sorted values, so all splits are tried:
    no start values, no randomness.
    """
    ordered = sorted(values)
    count, first = len(ordered), ordered[0]
    if first == ordered[-1]:
        return first, first, first
    sums = list(accumulate(ordered))
    total, best, split = sums[-1], -math.inf, 1
    for size in range(1, count):
        if ordered[size] == ordered[size - 1]:
            continue  # equal values stay together
        low_sum = sums[size - 1]
        # Minimising the squared error is maximising the squared sums over the counts.
        score = low_sum**2 / size + (total - low_sum) ** 2 / (count - size)
        if score > best:
            best, split = score, size
    low, high = sums[split - 1] / split, (total - sums[split - 1]) / (count - split)
    return low, high, (ordered[split - 1] + ordered[split]) / 2


def bursts(samples: Iterable[float], period_seconds: float) -> Bursts:
    """Mean lengths and levels of a series sampled every `period_seconds`."""
    values = [float(value) for value in samples if math.isfinite(value)]
    if not values:
        return _idle(0.0)
    low, high, threshold = two_means(values)
    length = len(values) * period_seconds
    if high - low <= STEADY * abs(high):
        mean = sum(values) / len(values)
        if mean > 0:
            return Bursts(
                burst_seconds=length,
                idle_seconds=0.0,
                burst_amount=mean,
                idle_amount=0.0,
                pattern="B",
            )
        return _idle(length)
    busy = [value > threshold for value in values]
    runs = [(is_burst, len(list(run))) for is_burst, run in groupby(busy)]
    return Bursts(
        burst_seconds=_mean_run(runs, True) * period_seconds,
        idle_seconds=_mean_run(runs, False) * period_seconds,
        burst_amount=_mean_of(values, busy, True),
        idle_amount=_mean_of(values, busy, False),
        pattern="BIB",
    )


def _idle(seconds: float) -> Bursts:
    return Bursts(
        burst_seconds=0.0, idle_seconds=seconds, burst_amount=0.0, idle_amount=0.0, pattern="I"
    )


def _mean_run(runs: list[tuple[bool, int]], is_burst: bool) -> float:
    """Mean number of samples in a run; the first and last run count only if there are no others."""
    inner_runs = [size for kind, size in runs[1:-1] if kind == is_burst]
    counted = inner_runs or [size for kind, size in runs if kind == is_burst]
    return sum(counted) / len(counted)


def _mean_of(values: list[float], busy: list[bool], is_burst: bool) -> float:
    chosen = [value for value, kind in zip(values, busy, strict=True) if kind == is_burst]
    return sum(chosen) / len(chosen)
