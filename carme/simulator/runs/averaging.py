"""Averaging plans: a master and slaves with model averaging (MERPSYS, Kaldi)."""

from __future__ import annotations

from carme.simulator.costs.collectives import send_seconds
from carme.simulator.costs.memory import measured_memory, model_bytes
from carme.simulator.costs.step import check_size, plan_step
from carme.simulator.events.compiled_queues import averaging
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.hardware.power import check_cap, under_cap
from carme.simulator.plans.averaging_schedule import (
    package_count,
    package_sizes,
    schedule,
)
from carme.simulator.plans.plan import Averaging, single_gpu_plan
from carme.simulator.runs.result import Segment, SimulationResult
from carme.simulator.runs.totals import startup, total_epochs, totals
from carme.simulator.workloads.workload import Workload


def run(workload: Workload, cluster: Cluster, plan: Averaging) -> SimulationResult:
    """The whole run. Phases are means over the GPUs: those that join late idle until then."""
    check_size(cluster, plan)
    gpu = cluster.node.gpu
    check_cap(gpu, plan.power_cap_watts)
    packages = package_count(plan, workload)
    per_package = workload.dataset.samples / packages
    if workload.measured:
        clock, busy_watts = under_cap(gpu, 1.0, plan.power_cap_watts)
        seconds = workload.measured_seconds(gpu.name, per_package) / clock
        memory = measured_memory(workload, cluster, plan.optimizer or workload.optimizer)
    else:
        step = plan_step(workload, cluster, single_gpu_plan(plan))
        seconds = step.nominal * per_package / step.samples
        busy_watts, clock, memory = step.busy_watts, step.clock, step.memory
    slaves = schedule(packages, plan.first_slaves, plan.gpus)
    work = seconds * package_sizes(plan, packages)
    size = model_bytes(workload, plan)
    near, far = send_seconds(size, cluster.node, False), send_seconds(size, cluster.node, True)
    ends, busy = averaging(slaves, work, cluster.node.gpus, near, far)
    epochs = total_epochs(workload, plan, 1)
    total = float(ends[-1]) * epochs
    compute = float(busy.sum()) / plan.gpus * epochs
    messages = min(len(slaves) * 2 * (far if cluster.nodes > 1 else near) * epochs, total - compute)
    idle = gpu.power.idle_watts
    segments = [
        Segment("compute", compute, busy_watts),
        Segment("communication", messages, idle),
        Segment("wait", total - compute - messages, idle),
    ]
    before = [s for s in startup(workload, cluster, plan) if s.phase != "broadcast"]
    return totals(
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
