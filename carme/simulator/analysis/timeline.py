"""A window of a run, operation by operation: for tracing tools, power over time and bursts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.jobs.bursts import Bursts, bursts
from carme.simulator.analysis.sampling import RESOURCES, sample
from carme.simulator.costs.collectives import Group, all_reduce_bytes, all_reduce_seconds, spread
from carme.simulator.costs.jitter import factors
from carme.simulator.costs.step import Step, plan_step, stage_seconds
from carme.simulator.events import models
from carme.simulator.events.trace import TraceReport
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.averaging_schedule import (
    message_seconds,
    package_count,
    package_sizes,
    schedule,
)
from carme.simulator.plans.plan import (
    Asynchronous,
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
    alone,
    require,
)
from carme.simulator.plans.shard import shard
from carme.simulator.runs.totals import model_bytes, startup
from carme.simulator.workloads.measured_steps import measured_seconds
from carme.simulator.workloads.workload import Workload

Floats = NDArray[np.float64]
MOST_WORKERS = 256
MOST_UPDATES = 20_000
"""Of an asynchronous plan, on each node."""
SENDERS = frozenset({"all-reduce", "worker 0", "slave 0", "update"})
"""Processes of the models that use the first GPU's link."""


class Window(NamedTuple):
    """Steps of a run as the engine recorded them."""

    report: TraceReport
    before: float
    """Seconds of the run before this window: start, loading, broadcast."""
    step: Step
    bytes_per_second: float
    """Over a node's network while gradients are reduced, each way; inside a node nothing."""
    steps: int


def window(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    steps: int = 5,
    workers: int | None = None,
    step: Step | None = None,
) -> Window:
    """The first `steps` steps of a plan, run in the general engine; of a pipeline, one step of one
    copy, stage by stage. `workers`: only so many of a synchronous plan, which look alike;
    `step`: its step, where that is known already."""
    require(
        plan.gpus <= MOST_WORKERS,
        f"a timeline of {plan.gpus} GPUs",
        f"at most {MOST_WORKERS}: take a smaller count, their steps look alike",
    )
    match plan:
        case Synchronous() if plan.pipeline > 1:
            return _pipeline(workload, cluster, plan)
        case Synchronous():
            return _synchronous(workload, cluster, plan, steps, workers, step)
        case ParameterServer():
            return _parameter_server(workload, cluster, plan, steps)
        case Asynchronous():
            return _asynchronous(workload, cluster, plan, steps)
        case Averaging():
            return _averaging(workload, cluster, plan, steps)
    raise TypeError(f"no such plan: {type(plan).__name__}")


def _before(workload: Workload, cluster: Cluster, plan: BasePlan) -> float:
    return sum(segment.seconds for segment in startup(workload, cluster, plan))


def _stretch(plan: BasePlan, steps: int) -> Floats:
    return factors(plan, steps, plan.gpus, np.random.default_rng(plan.seed))


def _network_rate(step: Step, cluster: Cluster, plan: Synchronous) -> float:
    group = spread(plan.copies, cluster.node, plan.tensor * plan.pipeline)
    busy = float(step.reduce.sum())
    # All groups on the node send; a pipeline's stages have a link each.
    groups = group.sharing / plan.pipeline
    sent = groups * all_reduce_bytes(step.gradient_bytes, Group(1, group.nodes))
    return sent / busy if busy else 0.0


def _synchronous(
    workload: Workload,
    cluster: Cluster,
    plan: Synchronous,
    steps: int,
    workers: int | None,
    known: Step | None,
) -> Window:
    step = known or plan_step(workload, cluster, plan)
    idle = cluster.node.gpu.power.idle_watts
    report = models.synchronous(step, _stretch(plan, steps)[:, :workers], idle_watts=idle)
    rate = _network_rate(step, cluster, plan)
    return Window(report, _before(workload, cluster, plan), step, rate, steps)


def _pipeline(workload: Workload, cluster: Cluster, plan: Synchronous) -> Window:
    step = plan_step(workload, cluster, plan)
    piece = shard(workload, cluster, plan)
    forward, backward, send = stage_seconds(piece)
    report = models.pipeline(
        forward,
        backward,
        send,
        piece.micro_batches,
        reduce=float(step.reduce.sum()),
        idle_watts=cluster.node.gpu.power.idle_watts,
        busy_watts=step.busy_watts,
    )
    rate = _network_rate(step, cluster, plan)
    return Window(report, _before(workload, cluster, plan), step, rate, 1)


def _parameter_server(
    workload: Workload, cluster: Cluster, plan: ParameterServer, steps: int
) -> Window:
    step = plan_step(workload, cluster, alone(plan))
    size, link = model_bytes(workload, plan), cluster.node.network
    transfer = 2 * (link.latency_seconds + size / (plan.servers * link.rate))
    compute = (step.kernels + step.overhead) * _stretch(plan, steps).T
    idle = cluster.node.gpu.power.idle_watts
    report = models.shared_link(
        compute.tolist(), transfer, idle_watts=idle, busy_watts=step.busy_watts
    )
    return Window(report, _before(workload, cluster, plan), step, size / transfer, steps)


def _asynchronous(workload: Workload, cluster: Cluster, plan: Asynchronous, steps: int) -> Window:
    step = plan_step(workload, cluster, alone(plan))
    size, group = model_bytes(workload, plan), spread(plan.gpus, cluster.node)
    gradient = plan.gradient_seconds or step.kernels + step.overhead
    update = plan.update_seconds or all_reduce_seconds(size, group, cluster.node) + step.update
    updates = steps * gradient / update
    require(
        updates <= MOST_UPDATES,
        f"a timeline of {updates:,.0f} updates",
        f"at most {MOST_UPDATES:,}: is one of the times in another unit?",
    )
    report, _ = models.asynchronous(
        gradient * _stretch(plan, steps).T,
        np.full(max(int(updates), 1), update),
        cluster.node.gpus,
        idle_watts=cluster.node.gpu.power.idle_watts,
        busy_watts=step.busy_watts,
    )
    sent = all_reduce_bytes(size, Group(1, group.nodes))
    return Window(report, _before(workload, cluster, plan), step, sent / update, steps)


def _averaging(workload: Workload, cluster: Cluster, plan: Averaging, steps: int) -> Window:
    step = plan_step(workload, cluster, alone(plan))
    packages = package_count(plan, workload)
    per_package = workload.dataset.samples / packages
    seconds = (
        measured_seconds(workload, cluster.node.gpu.name, per_package)
        if workload.measured
        else step.nominal * per_package / step.samples
    )
    near, far = message_seconds(workload, cluster, plan)
    report = models.averaging(
        schedule(packages, plan.first_slaves, plan.gpus)[-steps:].tolist(),
        (seconds * package_sizes(plan, packages)).tolist(),
        cluster.node.gpus,
        near,
        far,
        idle_watts=cluster.node.gpu.power.idle_watts,
        busy_watts=step.busy_watts,
    )
    rate = model_bytes(workload, plan) / far
    return Window(report, _before(workload, cluster, plan), step, rate, steps)


def chrome_trace(seen: Window) -> dict[str, Any]:
    """The window in Chrome's trace event format, which Perfetto opens, too.

    One process row for each resource (what it did), one for each of the model's processes that
    only waited, and a counter with the power of each device.
    """
    events: list[dict[str, Any]] = []
    rows: dict[str, int] = {}

    def row(name: str) -> int:
        if name not in rows:
            rows[name] = len(rows) + 1
            events.append(_meta("thread_name", rows[name], name))
            events.append(_meta("thread_sort_index", rows[name], len(rows)))
        return rows[name]

    events.append(_meta("process_name", 0, "carme"))
    for resource in seen.report.resources:
        row(resource.name)
    for record in seen.report.records():
        if record.end <= record.start or record.process == "gradient":
            continue
        events.append(
            {
                "name": record.label,
                "cat": "resource" if record.resource else "wait",
                "ph": "X",
                "ts": record.start * 1e6,
                "dur": (record.end - record.start) * 1e6,
                "pid": 1,
                "tid": row(record.resource or record.process),
                "args": {
                    "process": record.process,
                    "queued_seconds": record.start - record.asked,
                    "bytes": record.size_bytes,
                    "watts": record.watts,
                },
            }
        )
    for resource in seen.report.resources:
        if resource.busy_watts:
            times, watts = seen.report.power_curve(resource.name)
            events += [
                {"name": f"{resource.name} power", "ph": "C", "ts": t * 1e6, "pid": 1,
                 "args": {"watts": round(float(w), 3)}}
                for t, w in zip(times, watts, strict=False)
            ]  # fmt: skip
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"window begins after seconds": seen.before},
    }


def _meta(kind: str, tid: int, value: Any) -> dict[str, Any]:
    key = "sort_index" if kind == "thread_sort_index" else "name"
    return {"name": kind, "ph": "M", "pid": 1, "tid": tid, "args": {key: value}}


def series(seen: Window, period_seconds: float) -> dict[str, Floats]:
    """What an exporter on the first GPU's node would sample: shares (0..1) and bytes a second."""
    report = seen.report
    first = next(r.name for r in report.resources if r.busy_watts)
    busy, links = [], []
    for record in report.records():
        if record.resource == first and record.end > record.start:
            busy.append((record.start, record.end))
        elif record.process in SENDERS and (record.size_bytes or record.label == "update"):
            links.append((record.start, record.end))

    def sampled(intervals: list[tuple[float, float]], level: float) -> Floats:
        pairs = np.array(intervals, dtype=float).reshape(-1, 2)
        levels = np.full(len(pairs), level)
        return sample(pairs[:, 0], pairs[:, 1], levels, report.seconds, period_seconds)

    network = sampled(links, seen.bytes_per_second)
    return {
        "gpu_utilization": sampled(busy, 1.0),
        "gpu_memory_utilization": sampled(busy, seen.step.traffic),
        "network_sent": network,
        "network_received": network.copy(),
    }


def burst_figures(seen: Window, period_seconds: float = 0.05) -> dict[str, Bursts]:
    """The twelve figures: burst and idle seconds and burst amount of four resources."""
    sampled = series(seen, period_seconds)
    return {name: bursts(sampled[name], period_seconds) for name in RESOURCES}
