"""Monte Carlo: the same run with different seeds, and the distribution of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import BasePlan
from carme.simulator.runs import simulate
from carme.simulator.runs.result import QUANTILES
from carme.simulator.workloads.workload import Workload

Floats = NDArray[np.float64]


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
        scaled([r.seconds for r in runs]),
        scaled([r.gpu_joules for r in runs]),
        scaled([r.node_joules for r in runs]),
    )
