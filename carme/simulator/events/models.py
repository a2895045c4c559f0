"""The plans as models of the event engine, written as a user would write them.

They are slow and simple. The fast paths (`compiled_queues.py`, `runs/`) are tested
against them, and timelines are drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from carme.simulator.costs.step import Step
from carme.simulator.events.engine import Simulation, Steps, TaskGraph, TraceReport
from carme.simulator.events.operations import (
    Arrive,
    Barrier,
    Compute,
    Device,
    Get,
    Link,
    Mailbox,
    Put,
    Transfer,
    Wait,
)
from carme.simulator.pipeline_schedule import ScheduleSlot, stage_schedule
from carme.simulator.workload import Floats


def shared_link(
    compute: Sequence[Sequence[float]], transfer: float, *, idle_watts: float, busy_watts: float
) -> TraceReport:
    """Workers that compute, then use one first-come link, again and again."""
    simulation = Simulation()
    link = simulation.link("link", bandwidth=1.0)

    def worker(gpu: Device, seconds: Sequence[float]) -> Steps:
        send = Transfer(link, transfer)
        for duration in seconds:
            yield Compute(gpu, duration)
            yield send

    for index, seconds in enumerate(compute):
        gpu = simulation.device(f"gpu {index}", idle_watts=idle_watts, busy_watts=busy_watts)
        simulation.process(worker(gpu, seconds), f"worker {index}")
    return simulation.run()


def averaging(
    slaves: Sequence[int],
    work: Sequence[float],
    near: int,
    near_seconds: float,
    far_seconds: float,
    *,
    idle_watts: float = 0.0,
    busy_watts: float = 0.0,
) -> TraceReport:
    """A master that sends packages and averages the returned models (Kaldi, MERPSYS)."""
    simulation = Simulation()
    host_link = simulation.link("device to host", bandwidth=1.0)
    network = simulation.link("network", bandwidth=1.0)
    returned = simulation.mailbox("returned models")
    max_slaves = max(slaves)
    orders = [simulation.mailbox(f"orders of slave {s}") for s in range(max_slaves)]

    def message(slave: int) -> Transfer:
        return Transfer(host_link, near_seconds) if slave < near else Transfer(network, far_seconds)

    def slave(index: int, gpu: Device, mailbox: Mailbox) -> Steps:
        while (seconds := (yield Get(mailbox))) is not None:
            yield Compute(gpu, seconds)
            yield message(index)
            yield Put(returned)

    def master() -> Steps:
        package = 0
        for count in slaves:
            for index in range(count):
                yield message(index)
                yield Put(orders[index], work[package % len(work)])
                package += 1
            for _ in range(count):
                yield Get(returned)
        for mailbox in orders:
            yield Put(mailbox, None)

    for index in range(max_slaves):
        gpu = simulation.device(f"gpu {index}", idle_watts=idle_watts, busy_watts=busy_watts)
        simulation.process(slave(index, gpu, orders[index]), f"slave {index}")
    simulation.process(master(), "master")
    return simulation.run()


def synchronous(step: Step, factors: Floats, *, idle_watts: float = 0.0) -> TraceReport:
    """Data-parallel steps: factors[k, w] multiplies the kernel time of worker w in step k.

    Each worker passes its gradient buckets to a reducer as they get ready. The reducer all-reduces
    one bucket after the other, each when the last worker has it; then all workers update.
    """
    simulation = Simulation()
    steps, workers = factors.shape
    ring = simulation.link("all-reduce", bandwidth=1.0)
    reduced = simulation.barrier(workers + 1, "step")
    buckets = len(step.bucket_ready_seconds)
    ready = [simulation.barrier(workers + 1, f"bucket {b}") for b in range(buckets)]

    def worker(gpu: Device, jitter: Floats) -> Steps:
        for factor in jitter:
            begin = simulation.now
            yield Wait(step.tensor_parallel_seconds, label="all-reduce in layers")
            computed = min(step.forward_seconds, *step.bucket_ready_seconds, step.kernel_seconds)
            yield Compute(gpu, computed * factor, step.busy_watts, "forward")
            for at, barrier in zip(step.bucket_ready_seconds, ready, strict=True):
                yield Compute(gpu, (at - computed) * factor, step.busy_watts, "backward")
                simulation.process(hand_over(barrier), "gradient")
                computed = at
            remaining = step.kernel_seconds + step.bubble_seconds - computed
            yield Compute(gpu, max(remaining, 0.0) * factor, step.busy_watts, "backward")
            yield Arrive(reduced)
            yield Compute(gpu, step.update_seconds, step.busy_watts, "update")
            yield Wait(step.overhead_seconds, label="host")
            yield Wait(max(begin + step.data_loading_seconds - simulation.now, 0.0), label="input")

    def hand_over(barrier: Barrier) -> Steps:
        yield Arrive(barrier)

    def reducer(link: Link) -> Steps:
        for _ in range(steps):
            for barrier, seconds in zip(ready, step.bucket_all_reduce_seconds, strict=True):
                yield Arrive(barrier)
                yield Transfer(link, seconds, label="all-reduce")
            yield Arrive(reduced)

    for index in range(workers):
        gpu = simulation.device(f"gpu {index}", idle_watts=idle_watts, busy_watts=step.busy_watts)
        simulation.process(worker(gpu, factors[:, index]), f"gpu {index}")
    simulation.process(reducer(ring), "all-reduce")
    return simulation.run()


def asynchronous(
    gradient: Floats,
    update: Floats,
    gpus_per_node: int,
    *,
    idle_watts: float = 0.0,
    busy_watts: float = 0.0,
) -> tuple[TraceReport, list[int]]:
    """SPRINT: gradient[w, k] seconds of GPU thread w's k-th gradient, update[u] of the u-th update.

    Returns the report and the number of gradients in each update. The update threads of all nodes
    meet in their all-reduce, so one process represents them.
    """
    simulation = Simulation()
    waiting = [0]
    collected: list[int] = []

    def thread(gpu: Device, seconds: Floats) -> Steps:
        for duration in seconds:
            yield Compute(gpu, duration, label="gradient")
            waiting[0] += 1

    def updater(host: Device) -> Steps:
        for duration in update:
            yield Compute(host, duration, label="update")
            collected.append(waiting[0])
            waiting[0] = 0

    for index, row in enumerate(gradient):
        name = f"node {index // gpus_per_node} gpu {index % gpus_per_node}"
        gpu = simulation.device(name, idle_watts=idle_watts, busy_watts=busy_watts)
        simulation.process(thread(gpu, row), gpu.name)
    # A gradient that is done at the very moment of an update is in it.
    simulation.process(updater(simulation.device("update threads")), "update", priority=1)
    return simulation.run(), collected


def pipeline(
    forward_seconds: list[float],
    backward_seconds: list[float],
    message_seconds: list[float],
    micro_batches: int,
    interleave: int = 1,
    *,
    all_reduce_seconds: float = 0.0,
    idle_watts: float = 0.0,
    busy_watts: float = 0.0,
) -> TraceReport:
    """One step of a 1F1B pipeline as a task graph: stages are devices, messages are tasks, and
    each stage's gradients are reduced after its last backward pass. The seconds are of virtual
    stages, `chunk * stages + stage`."""
    simulation = Simulation()
    virtual = len(forward_seconds)
    stages = virtual // interleave
    work = [
        (s, slot)
        for s in range(stages)
        for slot in stage_schedule(s, stages, micro_batches, interleave)
    ]
    # Tasks may wait for ones that are added later, so all numbers are known before.
    number = {key: index for index, key in enumerate(work)}
    devices = [
        simulation.device(f"stage {s}", idle_watts=idle_watts, busy_watts=busy_watts)
        for s in range(stages)
    ]
    graph = TaskGraph()
    messages: list[tuple[str, float, int]] = []
    for (s, slot), before in zip(work, [None, *work], strict=False):
        after = [number[before]] if before and before[0] == s else []
        v = slot.chunk * stages + s
        source = v + 1 if slot.backward else v - 1
        if 0 <= source < virtual:
            after.append(len(work) + len(messages))
            name = f"{_title(slot)} to stage {s}"
            sent = source % stages, slot._replace(chunk=source // stages)
            messages.append((name, message_seconds[min(v, source)], number[sent]))
        elif slot.backward:
            after.append(number[s, slot._replace(backward=False)])
        seconds = backward_seconds[v] if slot.backward else forward_seconds[v]
        label = "backward" if slot.backward else "forward"
        graph.add(_title(slot), Compute(devices[s], seconds, label=label), after)
    for name, seconds, sent_by in messages:
        graph.add(name, Wait(seconds, label="message"), [sent_by])
    if all_reduce_seconds:
        for s in range(stages):
            link = simulation.link(f"all-reduce of stage {s}", bandwidth=1.0)
            last = number[s, ScheduleSlot(True, micro_batches - 1, 0)]
            graph.add("all-reduce", Transfer(link, all_reduce_seconds, label="all-reduce"), [last])
    graph.start(simulation)
    return simulation.run()


def _title(slot: ScheduleSlot) -> str:
    return f"{'backward' if slot.backward else 'forward'} {slot.micro_batch}"
