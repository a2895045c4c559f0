"""Suites: ranges of parameters, the points in them, and strategies that choose points to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np

from carme.errors import InputError

Point = dict[str, Any]
"""Values of the parameters that vary."""
MOST_POINTS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """A point with the figures of its result, or the reason why it cannot run."""

    point: Point
    figures: Mapping[str, Any]
    error: str = ""


def points(ranges: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """Every combination, the last parameter varying fastest."""
    size = 1
    for name, values in ranges.items():
        if not values:
            raise InputError(f"{name} has no values", "give at least one")
        size *= len(values)
    if size > MOST_POINTS:
        raise InputError(f"{size:,} points", f"at most {MOST_POINTS:,}; use fewer values")
    for values in product(*ranges.values()):
        yield dict(zip(ranges, values, strict=True))


class SearchStrategy(Protocol):
    """Chooses the points to run next from the outcomes so far."""

    def ask(self) -> list[Point]:
        """The next points, in any order; empty at the end of the search."""
        ...

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Receives the outcomes of points that `ask` returned."""
        ...


class Exhaustive:
    """Every point, `size` at a time."""

    def __init__(self, ranges: Mapping[str, Sequence[Any]], size: int = 256) -> None:
        self._remaining = list(points(ranges))[::-1]
        self._size = size

    def ask(self) -> list[Point]:
        batch = self._remaining[-self._size :][::-1]
        del self._remaining[-self._size :]
        return batch

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""


class Random(Exhaustive):
    """`count` points drawn without repetition."""

    def __init__(
        self, ranges: Mapping[str, Sequence[Any]], count: int, seed: int = 0, size: int = 256
    ) -> None:
        super().__init__(ranges, size)
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self._remaining))[:count]
        self._remaining = [self._remaining[i] for i in chosen]


def front(outcomes: Sequence[Outcome], objectives: Sequence[str]) -> list[Outcome]:
    """Outcomes that no other beats in every objective (less is better), by the first objective."""
    valid = [o for o in outcomes if not o.error]
    if not valid:
        return []
    values = np.array([[float(o.figures[name]) for name in objectives] for o in valid])
    order = np.lexsort(values.T[::-1])
    chosen: list[int] = []
    best = np.empty((0, len(objectives)))
    for index in order:
        # Sorted by the first objective: only chosen points can dominate this one.
        row = values[index]
        if not np.any(np.all(best <= row, axis=1)):
            chosen.append(int(index))
            best = np.vstack([best, row])
    return [valid[i] for i in chosen]
