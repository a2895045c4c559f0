"""Master and slaves with model averaging (MERPSYS, Kaldi): the whole run by its fast path."""

from __future__ import annotations

from carme.simulator.account import beginning, epochs_of, settle
from carme.simulator.averaging_plan import message_seconds, package_count, package_sizes, schedule
from carme.simulator.hardware import Cluster
from carme.simulator.measured import measured_seconds
from carme.simulator.memory import memory_of_measured
from carme.simulator.plan import Averaging, alone
from carme.simulator.power import check_cap, under_cap
from carme.simulator.queues import averaging
from carme.simulator.result import Result, Segment
from carme.simulator.step import check_size, plan_step
from carme.simulator.workload import Workload


def run(workload: Workload, cluster: Cluster, plan: Averaging) -> Result:
    """The whole run. Energy is the mean over the plan's GPUs: late ones idle before."""
    check_size(cluster, plan)
    gpu = cluster.node.gpu
    check_cap(gpu, plan.power_cap_watts)
    packages = package_count(plan, workload)
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
