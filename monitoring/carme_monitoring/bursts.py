"""Bursts in a signal: how long they last, how long the pauses are, how much a burst is.

Two-means clustering on the samples says which of them are high; neighbours of one kind are one
burst or one pause. Pure, and without NumPy, whose memory would be half of the exporter's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SIGNALS = ("gpu", "gpu_memory", "send", "receive")
_MAX_ROUNDS = 50


@dataclass(frozen=True)
class Bursts:
    """The three figures of a signal."""

    burst_seconds: float
    pause_seconds: float
    amount: float


def threshold(values: Sequence[float]) -> float | None:
    """The border between the two clusters of `values`; None when there is only one."""
    ordered = sorted(values)
    if not ordered or ordered[0] == ordered[-1]:
        return None
    sums = [0.0]
    for value in ordered:
        sums.append(sums[-1] + value)
    count, split = len(ordered), _first_above(ordered, (ordered[0] + ordered[-1]) / 2)
    for _ in range(_MAX_ROUNDS):
        low = sums[split] / split
        high = (sums[count] - sums[split]) / (count - split)
        moved = _first_above(ordered, (low + high) / 2)
        if moved == split:
            break
        split = moved
    return (ordered[split - 1] + ordered[split]) / 2


def find(values: Sequence[float], step_seconds: float, is_level: bool) -> Bursts | None:
    """The bursts of evenly spaced samples.

    `is_level`: the signal is an amount that is held (memory), and a burst's amount is its mean;
    otherwise it is a rate, and the amount is what flowed. None without both kinds of samples.
    The first and last stretch are cut off by the window: they count only if there are no others.
    """
    border = threshold(values)
    if border is None:
        return None
    stretches: list[tuple[bool, int, float]] = []
    for value in values:
        is_high = value > border
        if stretches and stretches[-1][0] == is_high:
            _, length, total = stretches[-1]
            stretches[-1] = (is_high, length + 1, total + value)
        else:
            stretches.append((is_high, 1, value))
    whole = stretches[1:-1]
    bursts = [part for part in whole if part[0]] or [part for part in stretches if part[0]]
    pauses = [part for part in whole if not part[0]] or [part for part in stretches if not part[0]]
    if not bursts or not pauses:
        return None
    mean_length = sum(part[1] for part in bursts) / len(bursts)
    total = sum(part[2] for part in bursts)
    amount = total / sum(part[1] for part in bursts) if is_level else total / len(bursts)
    return Bursts(
        burst_seconds=mean_length * step_seconds,
        pause_seconds=sum(part[1] for part in pauses) / len(pauses) * step_seconds,
        amount=amount if is_level else amount * step_seconds,
    )


def _first_above(ordered: Sequence[float], border: float) -> int:
    """How many values are not above the border; at least one and not all."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] <= border:
            low = middle + 1
        else:
            high = middle
    return min(max(low, 1), len(ordered) - 1)
