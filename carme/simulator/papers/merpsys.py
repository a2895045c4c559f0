"""Rościszewski 2017: power/time trade-off of Kaldi training with a growing number of slaves."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from carme.simulator.hardware import Cluster
from carme.simulator.papers import PublishedFigure, around
from carme.simulator.plans import Averaging, package_sizes
from carme.simulator.runs import simulate
from carme.simulator.workload import Workload

IMBALANCE = 0.070
"""Tuned: spread of the archives' sizes that gives a gain of 8.25 % at constant 8 slaves."""
SEEDS = range(8)
"""The real archives' sizes are not published; figures are means over drawn ones."""


def plans(imbalance: float, seed: int = 0) -> list[Averaging]:
    """One suite of the paper: 1 slave growing to 1..8."""
    return [Averaging(gpus=n, imbalance=imbalance, seed=seed) for n in range(1, 9)]


def rows(workload: Workload, cluster: Cluster) -> list[PublishedFigure]:
    """The figures of the paper's text."""

    def hours(plan: Averaging) -> float:
        return simulate(workload, cluster, plan).seconds / 3600

    balanced = [hours(plan) for plan in plans(0)]
    real = np.mean([[hours(p) for p in plans(IMBALANCE, seed)] for seed in SEEDS], axis=0)
    gains = {n: _constant_gain(workload, cluster, n) for n in (2, 4, 8)}
    return [
        around(
            "one GPU, an epoch",
            reference=45,
            simulated=balanced[0],
            unit="h",
            band=0.45,
            note="tuned: the longest of the printed 10 to 45 h",
            origin="fitted",
        ),
        around(
            "growth 1 → 8, balanced archives",
            reference=10.0,
            simulated=balanced[-1],
            unit="h",
            band=0.25,
            note="the shortest of the printed 10 to 45 h",
        ),
        PublishedFigure(
            "growth 1 → 8, real archives",
            reference="10.4 to 11.0",
            simulated=real[-1],
            unit="h",
            low=10.4,
            high=11.0,
            origin="worked out",
        ),
        around(
            "all 16 points", reference=335, simulated=sum(balanced) + sum(real), unit="h", band=3.35
        ),
        around(
            "the same without imbalance",
            reference=329,
            simulated=2 * sum(balanced),
            unit="h",
            band=3.3,
            origin="worked out",
        ),
        around(
            "gain of balance, constant 8 slaves",
            reference=8.25,
            simulated=gains[8],
            unit="%",
            band=0.6,
            note="tuned",
            origin="fitted",
        ),
        around(
            "gain of balance, constant 4 slaves",
            reference=6.1,
            simulated=gains[4],
            unit="%",
            band=0.6,
            origin="worked out",
        ),
        around(
            "gain of balance, constant 2 slaves",
            reference=3.5,
            simulated=gains[2],
            unit="%",
            band=0.6,
            origin="worked out",
        ),
        around(
            "gain of balance, growth to 8",
            reference=6.0,
            simulated=100 * (1 - balanced[-1] / real[-1]),
            unit="%",
            band=1.0,
            origin="worked out",
        ),
        PublishedFigure(
            "gain of balance without the barrier",
            reference="none",
            simulated=_without_barrier(),
            unit="%",
            low=-1,
            high=1,
            origin="worked out",
        ),
    ]


def _constant_gain(workload: Workload, cluster: Cluster, slaves: int) -> float:
    def hours(imbalance: float, seed: int) -> float:
        plan = Averaging(gpus=slaves, first_slaves=slaves, imbalance=imbalance, seed=seed)
        return simulate(workload, cluster, plan).seconds

    even = hours(0, 0)
    return float(np.mean([100 * (1 - even / hours(IMBALANCE, seed)) for seed in SEEDS]))


def _without_barrier(slaves: int = 8, packages: int = 1061) -> float:
    """What balance would gain if each slave took its next archive as soon as it is free."""

    def makespan(imbalance: float) -> float:
        plan = Averaging(gpus=slaves, imbalance=imbalance)
        free = [0.0] * slaves
        for size in package_sizes(plan, packages):
            heappush(free, heappop(free) + size)
        return max(free)

    return 100 * (1 - makespan(0.0) / makespan(IMBALANCE))
