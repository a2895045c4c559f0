"""Plans whose workers queue for links, first come, first served: parameter servers, and a master
and slaves with model averaging (MERPSYS, Kaldi).

The compiled event queues are imported at their use: Numba takes half a second, and the other plans
do not need it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from carme.simulator.costs.collectives import send_seconds
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.step import Step, check_size, plan_step
from carme.simulator.hardware import Cluster
from carme.simulator.plans import (
    Averaging,
    ParameterServer,
    averaging_schedule,
    package_count,
    package_sizes,
    single_gpu_plan,
)
from carme.simulator.runs.jitter import Jitter
from carme.simulator.runs.result import (
    Distribution,
    Segment,
    SimulationResult,
    startup,
    total_epochs,
    totals,
)
from carme.simulator.workload import Floats, Workload


def push_pull_seconds(workload: Workload, cluster: Cluster, plan: ParameterServer) -> float:
    """Seconds in which a worker pushes gradients, then pulls weights; the shards of several servers
    are sent at the same time."""
    link = cluster.node.network
    return 2 * (link.latency_seconds + model_bytes(workload, plan) / (plan.servers * link.rate))


def run_parameter_server(
    workload: Workload, cluster: Cluster, plan: ParameterServer
) -> SimulationResult:
    """The whole run, from the steady state of `sample_steps` simulated steps."""
    from carme.simulator.events.compiled_queues import shared_link

    check_size(cluster, plan)
    step = plan_step(workload, cluster, single_gpu_plan(plan))
    transfer = push_pull_seconds(workload, cluster, plan)
    rounds = max(plan.sample_steps // plan.gpus, 20)
    jitter = Jitter.of(plan).factors(rounds, plan.gpus, np.random.default_rng(plan.seed))
    compute_seconds = (step.kernel_seconds + step.overhead_seconds) * jitter.T
    _, end = shared_link(np.ascontiguousarray(compute_seconds), transfer)
    # Mean seconds between two pushes of a worker, over the second half of the run.
    half = rounds // 2
    cycle = float((end[:, -1] - end[:, half - 1]).mean() / (rounds - half))
    # Updates between reading the weights and applying the gradient, that one included.
    pushes = np.sort(end, axis=None)
    read = np.searchsorted(pushes, end[:, :-1].ravel(), side="right")
    applied = np.searchsorted(pushes, end[:, 1:].ravel(), side="left")
    samples = workload.dataset.samples
    epochs = total_epochs(workload, plan, step.samples)
    steps = ceil(samples / step.samples) * epochs / plan.gpus
    idle = cluster.node.gpu.power.idle_watts
    segments = [
        Segment("compute", step.kernel_seconds * steps, step.busy_watts),
        Segment("communication", transfer * steps, idle),
        Segment("wait", max(cycle - step.kernel_seconds - transfer, 0.0) * steps, idle),
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
        bytes_sent_per_step=model_bytes(workload, plan),
        clock=step.clock,
        staleness=Distribution.of(applied - read + 1),
    )


def package_seconds(workload: Workload, cluster: Cluster, plan: Averaging, step: Step) -> Floats:
    """Compute seconds of each data package of an epoch; `step` is that of one GPU."""
    packages = package_count(plan, workload)
    samples = workload.dataset.samples / packages
    if workload.measured:
        seconds = workload.measured_seconds(cluster.node.gpu.name, samples) / step.clock
    else:
        seconds = step.nominal_seconds * samples / step.samples
    return seconds * package_sizes(plan, packages)


def run_averaging(workload: Workload, cluster: Cluster, plan: Averaging) -> SimulationResult:
    """The whole run. Phases are means over the GPUs: those that join late idle until then."""
    from carme.simulator.events.compiled_queues import averaging

    check_size(cluster, plan)
    step = plan_step(workload, cluster, single_gpu_plan(plan))
    packages = package_count(plan, workload)
    slaves = averaging_schedule(packages, plan.first_slaves, plan.gpus)
    size = model_bytes(workload, plan)
    near_seconds, far_seconds = (
        send_seconds(size, cluster.node, False),
        send_seconds(size, cluster.node, True),
    )
    work = package_seconds(workload, cluster, plan, step)
    ends, busy = averaging(slaves, work, cluster.node.gpus, near_seconds, far_seconds)
    epochs = total_epochs(workload, plan, 1)
    total = float(ends[-1]) * epochs
    compute = float(busy.sum()) / plan.gpus * epochs
    messages = min(
        len(slaves) * 2 * (far_seconds if cluster.nodes > 1 else near_seconds) * epochs,
        total - compute,
    )
    idle = cluster.node.gpu.power.idle_watts
    segments = [
        Segment("compute", compute, step.busy_watts),
        Segment("communication", messages, idle),
        Segment("wait", total - compute - messages, idle),
    ]
    startup_segments = [s for s in startup(workload, cluster, plan) if s.phase != "broadcast"]
    return totals(
        workload,
        cluster,
        plan,
        startup_segments + segments,
        step.memory,
        samples=float(slaves.sum()) * (workload.dataset.samples / packages) * epochs,
        steps=len(slaves) * epochs,
        epochs=epochs,
        batch=float(slaves.mean()),
        clock=step.clock,
    )
