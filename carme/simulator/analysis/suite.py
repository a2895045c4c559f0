"""Suites: parameter ranges, the points in them, and who decides which points to run next."""

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
    """A point and what came of it: the result's figures, or why there is none."""

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


class Optimizer(Protocol):
    """Decides which points to run next, knowing what came of those before."""

    def ask(self) -> list[Point]:
        """The next points, in an order that does not matter; empty when there is no more to do."""
        ...

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """What came of points that were asked for."""
        ...


class Exhaustive:
    """Every point, in pieces of `size`."""

    def __init__(self, ranges: Mapping[str, Sequence[Any]], size: int = 256) -> None:
        self._left = list(points(ranges))[::-1]
        self._size = size

    def ask(self) -> list[Point]:
        taken = self._left[-self._size :][::-1]
        del self._left[-self._size :]
        return taken

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""


class Random(Exhaustive):
    """`count` points drawn without repetition."""

    def __init__(
        self, ranges: Mapping[str, Sequence[Any]], count: int, seed: int = 0, size: int = 256
    ) -> None:
        super().__init__(ranges, size)
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self._left))[:count]
        self._left = [self._left[i] for i in chosen]


def front(outcomes: Sequence[Outcome], objectives: Sequence[str]) -> list[Outcome]:
    """Outcomes that no other beats in every objective (less is better), by the first objective."""
    good = [o for o in outcomes if not o.error]
    if not good:
        return []
    values = np.array([[float(o.figures[name]) for name in objectives] for o in good])
    order = np.lexsort(values.T[::-1])
    kept: list[int] = []
    best = np.empty((0, len(objectives)))
    for index in order:
        # Sorted by the first objective: only points already kept can dominate this one.
        row = values[index]
        if not np.any(np.all(best <= row, axis=1)):
            kept.append(int(index))
            best = np.vstack([best, row])
    return [good[i] for i in kept]
