"""Asynchronous plans: gradients on every GPU, updates beside them (SPRINT)."""

from __future__ import annotations

from carme.simulator.costs.collectives import all_reduce_seconds, spread
from carme.simulator.costs.step import check_size, plan_step
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import Asynchronous, alone
from carme.simulator.runs.result import Segment, SimulationResult
from carme.simulator.runs.staleness import simulated
from carme.simulator.runs.totals import epochs_of, model_bytes, startup, totals
from carme.simulator.workloads.workload import Workload


def run(workload: Workload, cluster: Cluster, plan: Asynchronous) -> SimulationResult:
    """The whole run: GPUs never wait, so it is as long as the gradients of all samples."""
    check_size(cluster, plan)
    step = plan_step(workload, cluster, alone(plan))
    gradient = plan.gradient_seconds or step.kernels + step.overhead
    reduce = all_reduce_seconds(
        model_bytes(workload, plan), spread(plan.gpus, cluster.node), cluster.node
    )
    update = plan.update_seconds or reduce + step.update
    samples = workload.dataset.samples
    statistics = simulated(
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
    epochs = epochs_of(workload, plan, statistics.mini_batch.mean)
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
