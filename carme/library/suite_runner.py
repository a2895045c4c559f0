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
from carme.simulator.analysis.search import Outcome, Point, SearchStrategy
from carme.simulator.hardware import Cluster, unmeasured_cap
from carme.simulator.runs import simulate
from carme.simulator.runs.figures import figures_of
from carme.simulator.runs.result import node_count
from carme.simulator.workload import Workload

STORE_VERSION = "3"
"""Changes when a stored figure is computed in another way: since 3, a job's share of a node holds
on each of its nodes."""
CHUNK = 64
"""Points a pool worker gets at a time; one takes about a millisecond."""


@dataclass(frozen=True)
class Suite:
    """What all points have in common. A point may change plan fields and the GPU (`gpu`)."""

    workload: Workload
    cluster: Cluster
    kind: str
    fields: dict[str, Any]
    may_add_nodes: bool = True
    """Whether a point with more GPUs than the cluster gets more nodes, instead of an error."""

    def evaluate(self, point: Point) -> Outcome:
        """The outcome of one point; it has an error if the point cannot run."""
        try:
            fields = {**self.fields, **point}
            gpu = fields.pop("gpu", None)
            plan = library.plan(self.kind, fields)
            cluster = self.cluster if gpu is None else self._with_gpu(f"{plan.gpus}x{gpu}")
            needed = node_count(cluster.node, plan)
            if self.may_add_nodes and needed > cluster.nodes:
                cluster = cluster.model_copy(update={"nodes": needed})
            if "power_cap_watts" in point and (
                reason := unmeasured_cap(cluster.node.gpu, plan.power_cap_watts)
            ):
                return Outcome(point, {}, f"no advice for this cap: {reason}")
            result = simulate(self.workload, cluster, plan)
        except CarmeError as error:
            return Outcome(point, {}, str(error))
        if not result.memory.fits:
            return Outcome(point, {}, f"does not fit: {result.memory.why_not()}")
        return Outcome(point, {**result.to_dict(), **figures_of(result)})

    def _with_gpu(self, gpus: str) -> Cluster:
        """Nodes with the GPUs of `8xV100` at this site: with its storage, grid and PUE, and with
        its network if it is not the usual one of the cluster's node."""
        other, site, node = library.cluster_of(gpus), self.cluster, self.cluster.node
        changes: dict[str, Any] = {
            "storage": site.storage,
            "grams_co2_per_kwh": site.grams_co2_per_kwh,
            "pue": site.pue,
        }
        if node.network != library.node(node.gpu.default_node).network:
            network = {"network": node.network, "adapters": node.adapters}
            changes["node"] = other.node.model_copy(
                update={**network, "congestion": node.congestion}
            )
        return other.model_copy(update=changes)

    def key(self) -> str:
        """Identifies stored outcomes: changes with everything that changes a result."""
        parts = (
            STORE_VERSION,
            self.workload.model_dump_json(),
            self.cluster.model_dump_json(),
            self.kind,
            json.dumps(self.fields, sort_keys=True),
            str(self.may_add_nodes),
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
    pool = None
    if jobs > 1:
        # Not fork: the caller may have threads, and a forked child may then hang.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_set_suite, initargs=(suite,)
        )
    try:
        while batch := strategy.ask():
            fresh = [point for point in batch if _name(point) not in stored]
            results = [stored[_name(point)] for point in batch if _name(point) in stored]
            done(len(results))
            for begin in range(0, len(fresh), CHUNK * jobs):
                part = fresh[begin : begin + CHUNK * jobs]
                new = (
                    list(pool.map(_evaluate, part, chunksize=CHUNK))
                    if pool
                    else [suite.evaluate(point) for point in part]
                )
                if store:
                    _append(store, suite.key(), new)
                results += new
                done(len(new))
            strategy.tell(results)
            outcomes += results
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return outcomes


_suite: Suite


def _set_suite(suite: Suite) -> None:
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
