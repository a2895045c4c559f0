"""Asynchronous plans (SPRINT): every GPU computes gradients while update threads apply them."""

from __future__ import annotations

from carme.simulator.costs.collectives import all_reduce_seconds, collective_group
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.step import check_size, plan_step
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import Asynchronous, single_gpu_plan
from carme.simulator.runs.result import Segment, SimulationResult
from carme.simulator.runs.staleness import simulate_staleness
from carme.simulator.runs.totals import startup, total_epochs, totals
from carme.simulator.workloads.workload import Workload


def run(workload: Workload, cluster: Cluster, plan: Asynchronous) -> SimulationResult:
    """The whole run: GPUs never wait, so it takes as long as the gradients of all samples."""
    check_size(cluster, plan)
    step = plan_step(workload, cluster, single_gpu_plan(plan))
    gradient = plan.gradient_seconds or step.kernels + step.overhead
    all_reduce = all_reduce_seconds(
        model_bytes(workload, plan), collective_group(plan.gpus, cluster.node), cluster.node
    )
    update = plan.update_seconds or all_reduce + step.update
    samples = workload.dataset.samples
    statistics = simulate_staleness(
        gradient,
        update,
        plan.gpus,
        step.samples,
        samples,
        jitter=plan.jitter,
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
