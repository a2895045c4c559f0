"""Synchronous plans: NumPy over steps, each as long as its slowest worker."""

from __future__ import annotations

from math import ceil

import numpy as np

from carme.simulator.costs.collectives import all_reduce_bytes, gradient_group, placed_node
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.hardware import Cluster, unmeasured_cap, watts
from carme.simulator.plans import Synchronous
from carme.simulator.runs.jitter import Jitter
from carme.simulator.runs.result import (
    QUANTILES,
    Segment,
    SimulationResult,
    startup,
    total_epochs,
    totals,
)
from carme.simulator.workload import Workload


def run_synchronous(
    workload: Workload, cluster: Cluster, plan: Synchronous, step: Step | None = None
) -> SimulationResult:
    """The whole run: startup, then the steps; `step` is one, if `plan_step` has computed it."""
    step = step or plan_step(workload, cluster, plan)
    epochs, steps = _epochs_and_steps(workload, plan, step)
    jitter = Jitter.of(plan)
    drawn = int(min(max(steps, 1), plan.sample_steps)) if jitter else 1
    times = step.seconds(jitter.slowest(drawn, plan.gpus, np.random.default_rng(plan.seed)))
    quantiles = np.quantile(times, QUANTILES).tolist() if jitter else []
    group = gradient_group(plan, placed_node(cluster.node, plan))
    segments = step_segments(step, float(times.mean()), steps, cluster)
    return totals(
        workload,
        cluster,
        plan,
        startup(workload, cluster, plan) + segments,
        step.memory,
        samples=steps * step.samples,
        steps=steps,
        epochs=epochs,
        batch=step.samples,
        bytes_sent_per_step=all_reduce_bytes(step.gradient_bytes, group),
        clock=step.clock,
        step_quantiles={f"{q:g}": v for q, v in zip(QUANTILES, quantiles, strict=False)},
        notes=_notes(step, cluster, plan),
    )


def _notes(step: Step, cluster: Cluster, plan: Synchronous) -> tuple[str, ...]:
    notes = [] if step.memory.fits else [f"does not fit: {step.memory.why_not()}"]
    if reason := unmeasured_cap(cluster.node.gpu, plan.power_cap_watts):
        notes.append(f"{reason}: figures under this cap are a guess")
    return tuple(notes)


def _epochs_and_steps(workload: Workload, plan: Synchronous, step: Step) -> tuple[float, float]:
    """Epochs over all GPUs together, and steps of the run."""
    samples = workload.dataset.samples
    epochs = total_epochs(workload, plan, step.samples)
    if plan.data == "sharded":
        return epochs, ceil(samples / step.samples) * epochs
    # Every data-parallel copy trains its own epochs on the whole set, at least one.
    copies = plan.data_parallel
    epochs_per_copy = max(round(epochs / copies), 1)
    return float(epochs_per_copy * copies), float(
        epochs_per_copy * ceil(samples * copies / step.samples)
    )


def step_segments(step: Step, seconds: float, steps: float, cluster: Cluster) -> list[Segment]:
    """`steps` steps of mean `seconds`, split into phases.

    A worker computes for `kernel_seconds` on average. It waits for the slowest worker, in the
    pipeline's bubble and for late samples.
    """
    gpu = cluster.node.gpu
    exposed = step.exposed_communication_seconds
    wait = seconds - step.kernel_seconds - exposed - step.update_seconds - step.overhead_seconds
    update_watts = min(watts(gpu, gpu.power.memory_share), step.busy_watts)
    return [
        Segment("compute", step.kernel_seconds * steps, step.busy_watts),
        Segment("communication", exposed * steps, step.wait_watts),
        Segment("update", step.update_seconds * steps, update_watts),
        Segment("wait", step.overhead_seconds * steps, gpu.power.idle_watts),
        Segment("wait", max(wait, 0.0) * steps, step.wait_watts),
    ]
