"""Master and slaves with model averaging and a growing number of slaves (MERPSYS, Kaldi).

With A packages and slaves growing from n0 to n1 there are ⌊2A/(n0+n1)⌋ iterations, and iteration
i has ⌊1/2 + n0 + (n1−n0)·i/iterations⌋ slaves. Each iteration is a barrier: the master averages
when all have returned, so the largest package of an iteration sets its length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from carme.simulator.account import beginning, epochs_of, model_bytes, settle
from carme.simulator.collectives import send_seconds
from carme.simulator.hardware import Cluster
from carme.simulator.measured import measured_seconds
from carme.simulator.memory import memory_of_measured
from carme.simulator.plan import Averaging, alone, require
from carme.simulator.power import check_cap, under_cap
from carme.simulator.queues import averaging
from carme.simulator.result import Result, Segment
from carme.simulator.step import check_size, plan_step
from carme.simulator.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def schedule(packages: int, first: int, final: int) -> Ints:
    """Slaves that take part in each iteration of an epoch."""
    iterations = 2 * packages // (first + final)
    require(
        iterations > 0,
        f"{packages} packages for {first} to {final} slaves",
        f"give at least {-(-(first + final) // 2)} packages",
    )
    i = np.arange(iterations)
    return np.floor(0.5 + first + (final - first) * i / iterations).astype(np.int64)


def package_sizes(plan: Averaging, packages: int) -> Floats:
    """Relative sizes with mean 1: the plan's own, or normal with its spread."""
    if plan.package_bytes:
        sizes = np.asarray(plan.package_bytes, dtype=float)
    else:
        rng = np.random.default_rng(plan.seed)
        sizes = np.maximum(1 + plan.imbalance * rng.standard_normal(packages), 0.05)
    return np.asarray(sizes / sizes.mean())


def message_seconds(workload: Workload, cluster: Cluster, plan: Averaging) -> tuple[float, float]:
    """Sending the model to a slave on the master's host, and to one on another."""
    size = model_bytes(workload, plan)
    node = cluster.node
    return send_seconds(size, node, False), send_seconds(size, node, True)


def run(workload: Workload, cluster: Cluster, plan: Averaging) -> Result:
    """The whole run. Energy is the mean over the plan's GPUs: late ones idle before."""
    check_size(cluster, plan)
    gpu = cluster.node.gpu
    check_cap(gpu, plan.power_cap_watts)
    packages = plan.packages if plan.packages > 1 else workload.dataset.samples
    per_package = workload.dataset.samples / packages
    if workload.measured:
        pace = under_cap(gpu, 1.0, plan.power_cap_watts)
        seconds = measured_seconds(workload, gpu.name, per_package) / pace.clock
        busy_watts, clock = pace.busy_watts, pace.clock
        memory = memory_of_measured(workload, cluster, plan.optimizer or workload.optimizer)
    else:
        step = plan_step(workload, cluster, alone(plan))
        seconds = step.nominal * per_package / step.samples
        busy_watts, clock, memory = step.busy_watts, step.clock, step.memory
    slaves = schedule(packages, plan.first_slaves, plan.gpus)
    work = seconds * package_sizes(plan, packages)
    near, far = message_seconds(workload, cluster, plan)
    ends, busy = averaging(slaves, work, cluster.node.gpus, near, far)
    epochs = epochs_of(workload, plan, 1)
    total = float(ends[-1]) * epochs
    compute = float(busy.sum()) / plan.gpus * epochs
    messages = min(len(slaves) * 2 * (far if cluster.nodes > 1 else near) * epochs, total - compute)
    idle = gpu.power.idle_watts
    segments = [
        Segment("compute", compute, busy_watts),
        Segment("communication", messages, idle),
        Segment("wait", total - compute - messages, idle),
    ]
    before = [s for s in beginning(workload, cluster, plan) if s.phase != "broadcast"]
    return settle(
        workload,
        cluster,
        plan,
        before + segments,
        memory,
        samples=float(slaves.sum()) * per_package * epochs,
        steps=len(slaves) * epochs,
        epochs=epochs,
        batch=float(slaves.mean()),
        clock=clock,
    )
