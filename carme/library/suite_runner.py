"""Running a suite: simulates its points in a process pool and resumes a stored run."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any

from carme import library
from carme.errors import CarmeError, ConfigError
from carme.simulator.analysis.suite import Outcome, Point, SearchStrategy
from carme.simulator.hardware import Cluster
from carme.simulator.runs import simulate
from carme.simulator.workload import Workload

STORE_VERSION = "2"
"""Changes when the meaning of a stored figure does: since 2, node energy is the charged share."""
CHUNK = 64
"""Points a pool worker gets at a time; one takes about a millisecond."""


@dataclass(frozen=True)
class Suite:
    """What all points have in common. A point may change plan fields and the GPU (`gpu`)."""

    workload: Workload
    cluster: Cluster
    kind: str
    fields: dict[str, Any]

    def evaluate(self, point: Point) -> Outcome:
        """The outcome of one point; it has an error if the point cannot run."""
        try:
            fields = {**self.fields, **point}
            gpu = fields.pop("gpu", None)
            plan = library.plan(self.kind, fields)
            cluster = self.cluster
            if gpu is not None:
                cluster = library.cluster_of(f"{plan.gpus}x{gpu}")
            needed = -(-plan.gpus // cluster.node.gpus)
            if needed > cluster.nodes:
                # A sweep over GPU counts may exceed the cluster: add nodes of its type.
                cluster = cluster.model_copy(update={"nodes": needed})
            result = simulate(self.workload, cluster, plan)
        except CarmeError as error:
            return Outcome(point, {}, str(error))
        if not result.memory.fits:
            return Outcome(point, {}, f"does not fit: {result.memory.why_not()}")
        figures = result.to_dict()
        figures.update(
            time=result.seconds,
            energy=result.node_joules,
            gpu_energy=result.gpu_joules,
            power=result.average_node_watts,
            emissions=result.grams_co2,
        )
        return Outcome(point, figures)

    def key(self) -> str:
        """Identifies stored outcomes: changes with everything that changes a result."""
        parts = (
            STORE_VERSION,
            self.workload.model_dump_json(),
            self.cluster.model_dump_json(),
            self.kind,
            json.dumps(self.fields, sort_keys=True),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def run_suite(
    suite: Suite,
    strategy: SearchStrategy,
    *,
    jobs: int = 1,
    store: Path | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """The outcomes of all points that the strategy chooses. `store` (JSON lines) keeps them for the
    next run; `done` is called with the number of points finished since its last call."""
    stored = _read(store, suite.key()) if store else {}
    outcomes: list[Outcome] = []
    with _Evaluator(suite, jobs) as evaluator:
        while batch := strategy.ask():
            fresh = [point for point in batch if _name(point) not in stored]
            old = [stored[_name(point)] for point in batch if _name(point) in stored]
            done(len(old))
            new: list[Outcome] = []
            for begin in range(0, len(fresh), CHUNK * max(jobs, 1)):
                part = evaluator(fresh[begin : begin + CHUNK * max(jobs, 1)])
                if store:
                    _append(store, suite.key(), part)
                new += part
                done(len(part))
            strategy.tell(old + new)
            outcomes += old + new
    return outcomes


class _Evaluator:
    """Evaluates points in this process, or in a pool of `jobs` processes."""

    def __init__(self, suite: Suite, jobs: int) -> None:
        self._suite = suite
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            # Not fork: the caller may have threads, and a forked child may then hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                jobs, mp_context=context, initializer=_begin, initargs=(suite,)
            )

    def __call__(self, points: Sequence[Point]) -> list[Outcome]:
        if self._pool:
            return list(self._pool.map(_evaluate, points, chunksize=CHUNK))
        return [self._suite.evaluate(point) for point in points]

    def __enter__(self) -> _Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


_suite: Suite


def _begin(suite: Suite) -> None:
    """In a pool worker: keep the suite, instead of sending it with every point."""
    global _suite
    _suite = suite


def _evaluate(point: Point) -> Outcome:
    return _suite.evaluate(point)


def _name(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


def _append(store: Path, key: str, outcomes: Sequence[Outcome]) -> None:
    with store.open("a+b") as file:
        if file.tell():
            # A line that an interruption cut short must not swallow the next one.
            file.seek(-1, SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        for o in outcomes:
            record = {"suite": key, "point": o.point, "figures": dict(o.figures), "error": o.error}
            file.write(json.dumps(record).encode() + b"\n")


def _read(store: Path, key: str) -> dict[str, Outcome]:
    """Stored outcomes of this suite; a line cut short by an interruption is left out."""
    outcomes: dict[str, Outcome] = {}
    try:
        lines = store.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return outcomes
    except OSError as error:
        raise ConfigError(f"{store}: cannot be read: {error}") from error
    for line in lines:
        try:
            record = json.loads(line)
            outcome = Outcome(record["point"], record["figures"], record["error"])
        except (ValueError, KeyError, TypeError):
            continue
        if record.get("suite") == key:
            outcomes[_name(outcome.point)] = outcome
    return outcomes
