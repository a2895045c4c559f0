"""Master and slaves with model averaging and a growing number of slaves (MERPSYS, Kaldi).

With A packages and slaves growing from n0 to n1 there are ⌊2A/(n0+n1)⌋ iterations, and iteration
i has ⌊1/2 + n0 + (n1−n0)·i/iterations⌋ slaves. Each iteration is a barrier: the master averages
when all have returned, so the largest package of an iteration sets its length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from carme.simulator.plans.plan import Averaging, require
from carme.simulator.workloads.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def package_count(plan: Averaging, workload: Workload) -> int:
    """Data packages of an epoch; every sample is one if the plan sets no number."""
    return plan.packages if plan.packages > 1 else workload.dataset.samples


def schedule(packages: int, first: int, final: int) -> Ints:
    """Number of slaves in each iteration of an epoch."""
    iterations = 2 * packages // (first + final)
    require(
        iterations > 0,
        f"{packages} packages for {first} to {final} slaves",
        f"give at least {-(-(first + final) // 2)} packages",
    )
    i = np.arange(iterations)
    return np.floor(0.5 + first + (final - first) * i / iterations).astype(np.int64)


def package_sizes(plan: Averaging, packages: int) -> Floats:
    """Relative package sizes with mean 1: measured, or normally distributed by `imbalance`."""
    if plan.package_bytes:
        sizes = np.asarray(plan.package_bytes, dtype=float)
    else:
        rng = np.random.default_rng(plan.seed)
        sizes = np.maximum(1 + plan.imbalance * rng.standard_normal(packages), 0.05)
    return np.asarray(sizes / sizes.mean())
