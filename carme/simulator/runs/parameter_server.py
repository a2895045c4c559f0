"""Parameter-server plans: workers queue for the servers' link, first come, first served."""

from __future__ import annotations

from math import ceil

import numpy as np

from carme.simulator.costs.jitter import jitter_factors
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.step import check_size, plan_step
from carme.simulator.events.compiled_queues import shared_link
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import ParameterServer, single_gpu_plan
from carme.simulator.runs.result import Segment, SimulationResult
from carme.simulator.runs.staleness import Distribution
from carme.simulator.runs.totals import startup, total_epochs, totals
from carme.simulator.workloads.workload import Workload


def run(workload: Workload, cluster: Cluster, plan: ParameterServer) -> SimulationResult:
    """The whole run, from the steady state of `sample_steps` simulated steps."""
    check_size(cluster, plan)
    step = plan_step(workload, cluster, single_gpu_plan(plan))
    compute = step.kernels + step.overhead
    size, link = model_bytes(workload, plan), cluster.node.network
    # Push gradients, then pull weights; the shards of several servers are sent at the same time.
    transfer = 2 * (link.latency_seconds + size / (plan.servers * link.rate))
    rounds = max(plan.sample_steps // plan.gpus, 20)
    jitter = jitter_factors(plan, rounds, plan.gpus, np.random.default_rng(plan.seed))
    _, end = shared_link(np.ascontiguousarray(compute * jitter.T), transfer)
    cycle = _cycle(end)
    samples = workload.dataset.samples
    epochs = total_epochs(workload, plan, step.samples)
    steps = ceil(samples / step.samples) * epochs / plan.gpus
    idle = cluster.node.gpu.power.idle_watts
    segments = [
        Segment("compute", step.kernels * steps, step.busy_watts),
        Segment("communication", transfer * steps, idle),
        Segment("wait", max(cycle - step.kernels - transfer, 0.0) * steps, idle),
    ]
    return totals(
        workload,
        cluster,
        plan,
        startup(workload, cluster, plan) + segments,
        step.memory,
        samples=samples * epochs,
        steps=steps,
        epochs=epochs,
        batch=step.samples,
        bytes_sent_per_step=size,
        clock=step.clock,
        staleness=_staleness(end),
    )


def _cycle(end: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """Mean seconds between two pushes of a worker, over the second half of the run."""
    half = end.shape[1] // 2
    return float((end[:, -1] - end[:, half - 1]).mean() / (end.shape[1] - half))


def _staleness(end: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Distribution:
    """Updates between reading the weights and applying the gradient, that one included."""
    pushes = np.sort(end, axis=None)
    read = np.searchsorted(pushes, end[:, :-1].ravel(), side="right")
    applied = np.searchsorted(pushes, end[:, 1:].ravel(), side="left")
    return Distribution.of(applied - read + 1)
