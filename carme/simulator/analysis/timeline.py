"""A window of a run, operation by operation: for tracing tools, power over time and bursts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from carme.bursts import Bursts, bursts
from carme.simulator.costs.collectives import (
    CollectiveGroup,
    all_reduce_bytes,
    collective_group,
    gradient_group,
    placed_node,
    send_seconds,
)
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.shard import shard_workload
from carme.simulator.costs.step import Step, plan_step, stage_seconds
from carme.simulator.events import models
from carme.simulator.events.engine import TraceReport
from carme.simulator.hardware import Cluster
from carme.simulator.plans import (
    Asynchronous,
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
    averaging_schedule,
    package_count,
    require,
    single_gpu_plan,
)
from carme.simulator.runs.asynchronous import thread_seconds
from carme.simulator.runs.jitter import Jitter
from carme.simulator.runs.queued import package_seconds, push_pull_seconds
from carme.simulator.runs.result import startup
from carme.simulator.workload import Floats, Workload

RESOURCES = ("gpu_utilization", "gpu_memory_utilization", "network_sent", "network_received")
MAX_WORKERS = 256
MAX_UPDATES = 20_000
"""Updates of an asynchronous plan in a window."""
SENDERS = frozenset({"all-reduce", "worker 0", "slave 0", "update"})
"""Processes of the event models that use the first GPU's link."""
SPINNING = frozenset({"barrier", "all-reduce in layers"})
"""Waits in a collective: its kernel spins, which NVML counts as utilisation, until the slowest
worker has arrived and the data are reduced."""
EXPORTER_PERIOD = 0.05
"""Seconds between samples of the exporter's job profiles."""
STEP_SAMPLES = (40, 200)
"""Samples of a step: at least, and at most."""


class Window(NamedTuple):
    """Steps of a run as the engine recorded them."""

    report: TraceReport
    startup_seconds: float
    """Seconds of the run before this window: startup, loading, broadcast."""
    step: Step
    bytes_per_second: float
    """Over a node's network in an all-reduce, in each direction; 0 inside a node."""
    steps: int


def simulate_window(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    steps: int = 5,
    workers: int | None = None,
    step: Step | None = None,
) -> Window:
    """The first `steps` steps of a plan, run in the event engine; of a pipeline, one step of one
    copy, stage by stage. `workers` limits the workers of a synchronous plan, which look alike;
    `step` is its step, if `plan_step` has computed it already."""
    require(
        plan.gpus <= MAX_WORKERS,
        f"a timeline of {plan.gpus} GPUs",
        f"at most {MAX_WORKERS}: take a smaller count, their steps look alike",
    )
    idle_watts = cluster.node.gpu.power.idle_watts
    jitter = Jitter.of(plan).factors(steps, plan.gpus, np.random.default_rng(plan.seed))
    size = model_bytes(workload, plan)
    step_plan = plan if isinstance(plan, Synchronous) else single_gpu_plan(plan)
    step = step or plan_step(workload, cluster, step_plan)
    watts = {"idle_watts": idle_watts, "busy_watts": step.busy_watts}
    match plan:
        case Synchronous():
            if plan.pipeline == 1:
                report = models.synchronous(step, jitter[:, :workers], idle_watts=idle_watts)
            else:
                steps = 1
                shard = shard_workload(workload, cluster, plan)
                # What is left of the all-reduces after the last backward pass.
                all_reduce_seconds = (
                    step.exposed_communication_seconds - step.tensor_parallel_seconds
                )
                forward_seconds, backward_seconds, message_seconds = stage_seconds(shard)
                report = models.pipeline(
                    forward_seconds,
                    backward_seconds,
                    message_seconds,
                    shard.micro_batches,
                    plan.interleave,
                    all_reduce_seconds=all_reduce_seconds,
                    **watts,
                )
            rate = _network_rate(step, cluster, plan)
        case ParameterServer():
            transfer = push_pull_seconds(workload, cluster, plan)
            compute = (step.kernel_seconds + step.overhead_seconds) * jitter.T
            report = models.shared_link(compute.tolist(), transfer, **watts)
            rate = size / transfer
        case Asynchronous():
            gradient, update = thread_seconds(workload, cluster, plan, step)
            updates = steps * gradient / update
            require(
                updates <= MAX_UPDATES,
                f"a timeline of {updates:,.0f} updates",
                f"at most {MAX_UPDATES:,}: is one of the times in another unit?",
            )
            update_seconds = np.full(max(int(updates), 1), update)
            report, _ = models.asynchronous(
                gradient * jitter.T, update_seconds, cluster.node.gpus, **watts
            )
            nodes = collective_group(plan.gpus, cluster.node).nodes
            rate = all_reduce_bytes(size, CollectiveGroup(1, nodes)) / update
        case Averaging():
            near_seconds, far_seconds = (
                send_seconds(size, cluster.node, crosses) for crosses in (False, True)
            )
            slaves = averaging_schedule(
                package_count(plan, workload), plan.first_slaves, plan.gpus
            )[-steps:].tolist()
            work = package_seconds(workload, cluster, plan, step).tolist()
            report = models.averaging(
                slaves, work, cluster.node.gpus, near_seconds, far_seconds, **watts
            )
            rate = size / far_seconds
        case _:
            raise TypeError(f"no such plan: {type(plan).__name__}")
    startup_seconds = sum(segment.seconds for segment in startup(workload, cluster, plan))
    return Window(
        report=report,
        startup_seconds=startup_seconds,
        step=step,
        bytes_per_second=rate,
        steps=steps,
    )


def _network_rate(step: Step, cluster: Cluster, plan: Synchronous) -> float:
    """Bytes per second out of a node during the all-reduces of gradients."""
    group = gradient_group(plan, placed_node(cluster.node, plan))
    seconds = float(step.bucket_all_reduce_seconds.sum())
    # All groups on the node send.
    sent = group.sharing * all_reduce_bytes(step.gradient_bytes, CollectiveGroup(1, group.nodes))
    return sent / seconds if seconds else 0.0


def chrome_trace(window: Window) -> dict[str, Any]:
    """The window in Chrome's trace event format, which Perfetto also opens.

    It has one row for each resource, one for each process that only waited, and a counter with the
    power of each device.
    """
    events: list[dict[str, Any]] = []
    rows: dict[str, int] = {}

    def metadata(kind: str, tid: int, **values: Any) -> None:
        events.append({"name": kind, "ph": "M", "pid": 1, "tid": tid, "args": values})

    def row(name: str) -> int:
        if name not in rows:
            rows[name] = len(rows) + 1
            metadata("thread_name", rows[name], name=name)
            metadata("thread_sort_index", rows[name], sort_index=len(rows))
        return rows[name]

    metadata("process_name", 0, name="carme")
    for resource in window.report.resources:
        row(resource.name)
    for record in window.report.records():
        if record.end <= record.start or record.process == "gradient":
            continue
        tid = row(record.resource or record.process)
        events.append(
            {
                "name": record.label,
                "cat": "resource" if record.resource else "wait",
                "ph": "X",
                "ts": record.start * 1e6,
                "dur": (record.end - record.start) * 1e6,
                "pid": 1,
                "tid": tid,
                "args": {
                    "process": record.process,
                    "queued_seconds": record.start - record.requested,
                    "bytes": record.size_bytes,
                    "watts": record.watts,
                },
            }
        )
    for resource in window.report.resources:
        if resource.busy_watts:
            times, watts = window.report.power_curve(resource.name)
            events += [
                {"name": f"{resource.name} power", "ph": "C", "ts": t * 1e6, "pid": 1,
                 "args": {"watts": round(float(w), 3)}}
                for t, w in zip(times, watts, strict=False)
            ]  # fmt: skip
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"window begins after seconds": window.startup_seconds},
    }


def series(window: Window, period_seconds: float) -> dict[str, Floats]:
    """What an exporter on the first GPU's node would sample: shares (0..1) and bytes per second."""
    report = window.report
    first_gpu = next(r.name for r in report.resources if r.busy_watts)
    computing, spinning, links = [], [], []
    for record in report.records():
        interval = (record.start, record.end)
        if record.resource == first_gpu and record.end > record.start:
            computing.append(interval)
        elif record.process == first_gpu and record.label in SPINNING:
            spinning.append(interval)
        elif record.process in SENDERS and (record.size_bytes or record.label == "update"):
            links.append(interval)
            if record.resource == f"all-reduce of {first_gpu}":
                spinning.append(interval)
    busy = computing + spinning
    if busy and first_gpu.startswith("stage"):
        # Between micro-batches, the kernel that receives the next one spins.
        busy = [(min(start for start, _ in busy), max(end for _, end in busy))]

    def sampled(intervals: list[tuple[float, float]], level: float) -> Floats:
        pairs = np.array(intervals, dtype=float).reshape(-1, 2)
        levels = np.full(len(pairs), level)
        return sample(pairs[:, 0], pairs[:, 1], levels, report.seconds, period_seconds)

    network = sampled(links, window.bytes_per_second)
    return {
        "gpu_utilization": sampled(busy, 1.0),
        "gpu_memory_utilization": sampled(computing, window.step.memory_busy_share),
        "network_sent": network,
        "network_received": network.copy(),
    }


def sample(
    begin: Floats, end: Floats, level: Floats, length: float, period_seconds: float
) -> Floats:
    """Means over each period of a signal that is `level` between `begin` and `end`, else 0; the
    intervals do not overlap. An exporter also reads means: a share of busy time, or bytes."""
    grid = np.arange(0, max(round(length / period_seconds), 1) + 1) * period_seconds
    if not len(begin):
        return np.zeros(len(grid) - 1)
    order = np.argsort(begin, kind="stable")
    begin, end, level = begin[order], end[order], level[order]
    times = np.column_stack([begin, end]).ravel()
    amounts = np.column_stack([np.zeros_like(level), level * (end - begin)]).ravel()
    total = np.interp(grid, times, np.cumsum(amounts), left=0.0)
    return np.asarray(np.diff(total) / period_seconds)


def sample_period(window: Window) -> float:
    """Seconds between samples: those of the exporter, or less if a step needs it, or more if the
    step is long."""
    step_seconds = window.report.seconds / window.steps
    return max(min(EXPORTER_PERIOD, step_seconds / STEP_SAMPLES[0]), step_seconds / STEP_SAMPLES[1])


def burst_figures(window: Window, period_seconds: float | None = None) -> dict[str, Bursts]:
    """Burst seconds, idle seconds and burst amount of each of the four resources, sampled every
    `period_seconds`; as finely as the step needs if unset."""
    period_seconds = period_seconds or sample_period(window)
    sampled = series(window, period_seconds)
    return {name: bursts(sampled[name], period_seconds) for name in RESOURCES}
