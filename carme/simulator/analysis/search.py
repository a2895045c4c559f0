"""Many runs: the grid of points in ranges of parameters, searches that choose points to run, the
Pareto front, and Monte Carlo with different seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from carme.errors import InputError
from carme.simulator.hardware import Cluster
from carme.simulator.plans import BasePlan
from carme.simulator.runs import simulate
from carme.simulator.runs.result import QUANTILES
from carme.simulator.workload import Floats, Workload

Point = dict[str, Any]
"""Values of the parameters that vary."""
MAX_POINTS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """A point with the figures of its result, or the reason why it cannot run."""

    point: Point
    figures: Mapping[str, Any]
    error: str = ""


def grid_points(ranges: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """Every combination, the last parameter varying fastest."""
    size = 1
    for name, values in ranges.items():
        if not values:
            raise InputError(f"{name} has no values", "give at least one")
        size *= len(values)
    if size > MAX_POINTS:
        raise InputError(f"{size:,} points", f"at most {MAX_POINTS:,}; use fewer values")
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


class ExhaustiveSearch:
    """Every point, `size` at a time."""

    def __init__(self, ranges: Mapping[str, Sequence[Any]], size: int = 256) -> None:
        self._remaining = list(grid_points(ranges))[::-1]
        self._size = size

    def ask(self) -> list[Point]:
        batch = self._remaining[-self._size :][::-1]
        del self._remaining[-self._size :]
        return batch

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Does nothing: the points are chosen beforehand."""


class RandomSearch(ExhaustiveSearch):
    """`count` points drawn without repetition."""

    def __init__(
        self, ranges: Mapping[str, Sequence[Any]], count: int, seed: int = 0, size: int = 256
    ) -> None:
        super().__init__(ranges, size)
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self._remaining))[:count]
        self._remaining = [self._remaining[i] for i in chosen]


def pareto_front(outcomes: Sequence[Outcome], objectives: Sequence[str]) -> list[Outcome]:
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


class Replicas(NamedTuple):
    """One value for each replica."""

    seconds: Floats
    gpu_joules: Floats
    node_joules: Floats

    def quantiles(self) -> dict[str, dict[str, float]]:
        """Quantiles and mean of each quantity, and the number of replicas."""
        quantities = {"count": {"replicas": float(len(self.seconds))}}
        for name, values in self._asdict().items():
            quantities[name] = {f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES}
            quantities[name]["mean"] = float(values.mean())
        return quantities


def replicate(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    count: int,
    done: Callable[[], object] = lambda: None,
) -> Replicas:
    """`count` runs whose seeds derive from the plan's; `done` is called after each.

    A run with more steps than were drawn averages more of them, so the deviation of its total is
    smaller by the square root of that ratio.
    """
    seeds = np.random.SeedSequence(plan.seed).generate_state(count, dtype=np.uint32)
    runs = []
    for seed in seeds:
        runs.append(simulate(workload, cluster, plan.model_copy(update={"seed": int(seed)})))
        done()
    drawn = min(plan.sample_steps, max(runs[0].steps, 1))
    shrink = (drawn / max(runs[0].steps, 1)) ** 0.5

    def scaled(values: list[float]) -> Floats:
        array = np.array(values)
        return np.asarray(array.mean() + (array - array.mean()) * shrink)

    return Replicas(
        seconds=scaled([r.seconds for r in runs]),
        gpu_joules=scaled([r.gpu_joules for r in runs]),
        node_joules=scaled([r.node_joules for r in runs]),
    )
