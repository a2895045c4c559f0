"""Asynchronous SGD (SPRINT): mini-batch size and staleness, by a closed form and by events.

GPU threads take T_GPU for a gradient of N samples, the update threads T_Update for an update;
q = T_Update / T_GPU and r = 1 / q. The closed form assumes that phases are random:

    mini-batch = N · Σ over GPUs of (⌊q⌋ + Y),  Y ~ Bernoulli(q − ⌊q⌋)
    staleness  = ⌊r⌋ + 1 + Z,                   Z ~ Bernoulli(r − ⌊r⌋)

Staleness is the number of updates from reading the weights to the update that applies the
gradient, that one included: hence the 1. The event simulation counts the same updates. Without
jitter its phases lock, so it differs from the closed form, which assumes random phases.
"""

from __future__ import annotations

from math import floor
from typing import NamedTuple

import numpy as np

from carme.simulator.costs.collectives import (
    all_reduce_seconds,
    collective_group,
    placed_node,
)
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.step import Step, check_size, plan_step
from carme.simulator.hardware import Cluster
from carme.simulator.plans import Asynchronous, require, single_gpu_plan
from carme.simulator.runs.jitter import Jitter, lognormal_factors
from carme.simulator.runs.result import (
    Distribution,
    Segment,
    SimulationResult,
    startup,
    total_epochs,
    totals,
)
from carme.simulator.workload import Floats, Workload

MAX_GRADIENTS = 5_000_000
"""Limit of a simulated run: two seconds and some hundred megabytes."""


class AsyncStatistics(NamedTuple):
    """Seconds of an epoch, and the distributions that the quality of training depends on."""

    epoch_seconds: float
    mini_batch: Distribution
    staleness: Distribution


def closed_form(
    *, gradient_seconds: float, update_seconds: float, gpus: int, sub_batch: int, samples: int
) -> AsyncStatistics:
    """Oyama et al. 2016: random phases, constant times."""
    q = update_seconds / gradient_seconds
    r = 1 / q
    share = q - floor(q)
    mini_batch = sub_batch * (gpus * floor(q) + np.arange(gpus + 1.0))
    later = r - floor(r)
    updates = np.array([floor(r) + 1.0, floor(r) + 2.0])
    return AsyncStatistics(
        epoch_seconds=samples * gradient_seconds / (gpus * sub_batch),
        mini_batch=Distribution(mini_batch, _binomial(gpus, share)),
        staleness=Distribution(updates, np.array([1 - later, later])),
    )


def simulate_staleness(
    *,
    gradient_seconds: float,
    update_seconds: float,
    gpus: int,
    sub_batch: int,
    samples: int,
    jitter: Jitter = Jitter(),  # noqa: B008  # immutable
    update_jitter: float = 0.0,
    updates: int = 2000,
    seed: int = 0,
) -> AsyncStatistics:
    """The statistics of a simulated run: every gradient of `updates` updates."""
    rng = np.random.default_rng(seed)
    update = update_seconds * lognormal_factors(update_jitter, (updates,), rng)
    rounds = float(update.sum()) / gradient_seconds * 1.1 + 10
    require(
        gpus * rounds <= MAX_GRADIENTS,
        f"{gpus * rounds:,.0f} gradients in {updates:,} updates",
        f"at most {MAX_GRADIENTS:,}: lower sample_steps, or is one of the times in another unit?",
    )
    gradient = gradient_seconds * jitter.factors(int(rounds), gpus, rng).T
    return staleness_statistics(gradient, update, sub_batch=sub_batch, samples=samples)


def staleness_statistics(
    gradient: Floats, update: Floats, sub_batch: int, samples: int
) -> AsyncStatistics:
    """Statistics of the durations gradient[w, k] and update[u], all starting at 0."""
    ends = np.cumsum(gradient, axis=1)
    starts = ends - gradient
    updated = np.cumsum(update)
    is_applied = ends <= updated[-1]
    # A gradient is applied by the first update that ends when the gradient does, or later.
    applied = np.searchsorted(updated, ends[is_applied], side="left")
    read = np.searchsorted(updated, starts[is_applied], side="right")
    mini_batch = np.bincount(applied, minlength=len(updated)) * sub_batch
    # The first updates have fewer gradients: leave them out.
    settled = max(len(updated) // 20, 1) if len(updated) > 20 else 0
    late = applied >= settled
    rate = is_applied.sum() * sub_batch / updated[-1]
    return AsyncStatistics(
        epoch_seconds=float(samples / rate) if rate else float("inf"),
        mini_batch=Distribution.of(mini_batch[settled:]),
        staleness=Distribution.of((applied - read + 1)[late]),
    )


def _binomial(n: int, p: float) -> Floats:
    """P(k) for k = 0..n, by the recurrence, in logarithms: n may be thousands."""
    if p <= 0 or p >= 1:
        shares = np.zeros(n + 1)
        shares[0 if p <= 0 else n] = 1.0
        return shares
    k = np.arange(1, n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k * p / (1 - p)))])
    shares = np.exp(logs - logs.max())
    result: Floats = shares / shares.sum()
    return result


def thread_seconds(
    workload: Workload, cluster: Cluster, plan: Asynchronous, step: Step
) -> tuple[float, float]:
    """Seconds of one gradient and of one update: measured, or computed from one GPU's step."""
    group = collective_group(plan.gpus, placed_node(cluster.node, plan))
    all_reduce = all_reduce_seconds(model_bytes(workload, plan), group, cluster.node)
    gradient = plan.gradient_seconds or step.kernel_seconds + step.overhead_seconds
    return gradient, plan.update_seconds or all_reduce + step.update_seconds


def run_asynchronous(workload: Workload, cluster: Cluster, plan: Asynchronous) -> SimulationResult:
    """The whole run: GPUs never wait, so it takes as long as the gradients of all samples."""
    check_size(cluster, plan)
    step = plan_step(workload, cluster, single_gpu_plan(plan))
    gradient, update = thread_seconds(workload, cluster, plan, step)
    samples = workload.dataset.samples
    statistics = simulate_staleness(
        gradient_seconds=gradient,
        update_seconds=update,
        gpus=plan.gpus,
        sub_batch=step.samples,
        samples=samples,
        jitter=Jitter.of(plan),
        update_jitter=plan.update_jitter,
        updates=plan.sample_steps,
        seed=plan.seed,
    )
    epochs = total_epochs(workload, plan, statistics.mini_batch.mean)
    seconds = statistics.epoch_seconds * epochs
    return totals(
        workload,
        cluster,
        plan,
        [*startup(workload, cluster, plan), Segment("compute", seconds, step.busy_watts)],
        step.memory,
        samples=samples * epochs,
        steps=seconds / update,
        epochs=epochs,
        batch=statistics.mini_batch.mean,
        clock=step.clock,
        mini_batch=statistics.mini_batch,
        staleness=statistics.staleness,
    )
