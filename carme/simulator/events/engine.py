"""The event engine: processes that yield operations, a calendar ordered by (time, priority,
sequence), and a report of energy, bytes and every operation.

    def worker(gpu, link):
        for _ in range(10):
            yield Compute(gpu, 0.2)
            yield Transfer(link, 1e6)

    simulation = Simulation()
    simulation.process(worker(simulation.device("gpu"), simulation.link("net", bandwidth=1e9)))
    report = simulation.run()
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from carme.errors import InputError
from carme.simulator.events.link_sharing import Flow, LinkSharing
from carme.simulator.events.operations import (
    Barrier,
    Device,
    Join,
    Link,
    Mailbox,
    Operation,
    Resource,
    Storage,
)
from carme.simulator.workload import Floats


class OperationRecord(NamedTuple):
    """One completed operation; from `requested` to `start` it waited for the resource."""

    process: str
    label: str
    resource: str
    requested: float
    start: float
    end: float
    size_bytes: float
    watts: float


@dataclass(frozen=True)
class TraceReport:
    """Operations, bytes and energy of a run of the engine; energy is that of its resources."""

    seconds: float
    flat: list[Any]
    """Fields of all records in one flat list, which the garbage collector need not scan."""
    resources: list[Resource]
    sent_bytes: dict[str, float]
    received_bytes: dict[str, float]

    def records(self) -> Iterator[OperationRecord]:
        """Operations in the order they began (fairly shared transfers: in which they ended)."""
        for process, label, resource, *figures in self._entries():
            yield OperationRecord(process.name, label, resource.name if resource else "", *figures)

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        return zip(*[iter(self.flat)] * len(OperationRecord._fields), strict=True)

    @property
    def operations(self) -> int:
        """Number of completed operations."""
        return len(self.flat) // len(OperationRecord._fields)

    def joules(self, name: str | None = None) -> float:
        """Energy of one resource, or of all."""
        chosen = (r for r in self.resources if name is None or r.name == name)
        return sum(resource.joules(self.seconds) for resource in chosen)

    def power_curve(self, name: str) -> tuple[Floats, Floats]:
        """Times and watts of a first-come resource: watts[i] holds from times[i] to times[i+1]."""
        resource = next(r for r in self.resources if r.name == name)
        busy = sorted(
            (start, end, watts)
            for _, _, record_resource, _, start, end, _, watts in self._entries()
            if record_resource is resource
        )
        times, curve = [0.0], []
        for start, end, power in busy:
            if start > times[-1]:
                times.append(start)
                curve.append(resource.idle_watts)
            if end > start:
                times.append(end)
                curve.append(power)
        if self.seconds > times[-1]:
            times.append(self.seconds)
            curve.append(resource.idle_watts)
        return np.array(times), np.array(curve)


P = ParamSpec("P")
R = TypeVar("R", bound=Resource)
FIRST = -1_000_000
"""Priority of the engine's own calls: before any process of the same time."""
Steps = Generator[Operation, Any, Any]


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """A running generator, its name in the trace and its priority among simultaneous events."""

    send: Callable[[Any], Operation]
    name: str
    priority: int
    blocked_on: str = ""
    ended: bool = False
    value: Any = None
    joiners: list[tuple[SimulatedProcess, float]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ScheduledCall:
    """A function on the calendar, with the interface of a process and of an operation."""

    function: Callable[[], None]
    cancelled: bool = False

    def send(self, _: Any) -> ScheduledCall:
        self.function()
        return self

    def begin(self, simulation: Simulation, process: Any) -> None:
        """Does nothing: a call has no next operation."""


def _adding(resource_type: Callable[P, R]) -> Callable[Concatenate[Simulation, P], R]:
    """A method that makes a resource, with the arguments of its class, and adds it."""

    def add(simulation: Simulation, /, *arguments: P.args, **settings: P.kwargs) -> R:
        resource = resource_type(*arguments, **settings)
        simulation.resources.append(resource)
        return resource

    return add


class Simulation:
    """A model and its run. The same calls always give the same events."""

    def __init__(self, *, trace: bool = True) -> None:
        self.now = 0.0
        self.sharing = LinkSharing()
        self.resources: list[Resource] = []
        self.sent: defaultdict[str, float] = defaultdict(float)
        self.received: defaultdict[str, float] = defaultdict(float)
        self._processes: list[SimulatedProcess] = []
        self.calendar: list[tuple[float, int, int, Any, Any]] = []
        self.sequence = 0
        self._records: list[Any] = []
        self.record: Callable[[Iterable[Any]], None] = (
            self._records.extend if trace else lambda _: None
        )

    # Building a model

    device = _adding(Device)
    link = _adding(Link)
    storage = _adding(Storage)
    barrier = staticmethod(Barrier)
    mailbox = staticmethod(Mailbox)

    def process(self, steps: Steps, name: str = "", priority: int = 0) -> SimulatedProcess:
        """Start a process now (before `run`, or from inside another process)."""
        name = name or f"process {len(self._processes)}"
        process = SimulatedProcess(steps.send, name, priority)
        self._processes.append(process)
        self.schedule(self.now, process)
        return process

    # What operations call

    def schedule(self, time: float, process: Any, value: Any = None) -> None:
        """Resume `process` at `time`; `yield` then gives back `value`."""
        self.sequence += 1
        heappush(self.calendar, (time, process.priority, self.sequence, process, value))

    def call_at(self, time: float, function: Callable[[], None]) -> ScheduledCall:
        """Run a function at `time`, before processes of the same time, unless it is cancelled."""
        call = ScheduledCall(function)
        self.sequence += 1
        heappush(self.calendar, (time, FIRST, self.sequence, call, None))
        return call

    def release(
        self, process: SimulatedProcess, label: str, since: float, value: Any = None
    ) -> None:
        """Resume a process that has waited for others since `since`."""
        process.blocked_on = ""
        if self.now > since:
            self.record((process, label, None, since, since, self.now, 0.0, 0.0))
        self.schedule(self.now, process, value)

    def deliver(self, source: str, target: str, size: float) -> None:
        """Count the bytes of a transfer at both ends."""
        self.sent[source] += size
        self.received[target] += size

    def arrived(self, flow: Flow) -> None:
        """Record a fairly shared transfer that has ended, and resume its process."""
        for link in flow.links:
            link.bytes += flow.transfer.size
            # Transfers overlap on a shared link, so its busy time follows from the bytes.
            link.busy_seconds += flow.transfer.size / link.bandwidth
        size, label, since = flow.transfer.size, flow.transfer.label, flow.since
        self.record((flow.process, label, flow.links[0], since, since, self.now, size, 0.0))
        self.schedule(self.now, flow.process)

    # Running it

    def run(self, until: float = float("inf")) -> TraceReport:
        """Run until no event is left, or to `until`, and report what happened. Raises InputError if
        processes wait that no event can resume."""
        calendar = self.calendar
        while calendar:
            now, priority, _, process, value = event = heappop(calendar)
            if priority == FIRST and process.cancelled:
                continue  # must not move the clock
            if now > until:
                heappush(calendar, event)
                self.now = until
                break
            self.now = now
            try:
                operation = process.send(value)
            except StopIteration as end:
                process.ended = True
                process.value = end.value
                for joiner, since in process.joiners:
                    self.release(joiner, "join", since, end.value)
                continue
            try:
                operation.begin(self, process)
            except AttributeError:
                if hasattr(operation, "begin"):
                    raise
                raise InputError(
                    f"{process.name} yielded {operation!r}",
                    "yield an operation: Compute, Transfer, Load, Wait, Arrive, Put, Get or Join",
                ) from None
        waiting = [f"{p.name} (for {p.blocked_on})" for p in self._processes if p.blocked_on]
        if waiting and not calendar:
            raise InputError(
                f"Deadlock at t = {self.now:g} s: these processes wait, and no event is scheduled: "
                + ", ".join(waiting[:5])
                + (f" and {len(waiting) - 5} more" if waiting[5:] else "")
            )
        return TraceReport(
            seconds=self.now,
            flat=self._records,
            resources=self.resources,
            sent_bytes=dict(self.sent),
            received_bytes=dict(self.received),
        )


class GraphTask(NamedTuple):
    """An operation, a name for the trace, and the tasks before it."""

    name: str
    operation: Operation
    after: tuple[int, ...]


class TaskGraph:
    """Tasks in any order; `add` returns the number of a task, for others to depend on."""

    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []

    def add(self, name: str, operation: Operation, after: Iterable[int] = ()) -> int:
        """A new task; `after` holds numbers of tasks, also of ones that are added later."""
        self.tasks.append(GraphTask(name, operation, tuple(after)))
        return len(self.tasks) - 1

    def start(self, simulation: Simulation) -> list[SimulatedProcess]:
        """Start every task as a process, after the tasks that it depends on. Raises InputError if
        tasks wait for each other or for one that does not exist."""
        graph: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(self.tasks)), ()))
        for number, task in enumerate(self.tasks):
            for dependency in set(task.after):
                if not 0 <= dependency < len(self.tasks):
                    raise InputError(
                        f"{task.name} waits for task {dependency}", "there is no such task"
                    )
                graph.add(number, dependency)
        started: dict[int, SimulatedProcess] = {}
        try:
            for number in graph.static_order():
                task = self.tasks[number]
                earlier = [started[dependency] for dependency in task.after]
                steps = _run_after(earlier, task.operation)
                started[number] = simulation.process(steps, task.name)
        except CycleError as error:
            name = self.tasks[error.args[1][0]].name
            raise InputError(
                f"the graph has a cycle through {name!r}", "a task cannot wait for itself"
            ) from None
        return [started[number] for number in range(len(self.tasks))]


def _run_after(earlier: list[SimulatedProcess], operation: Operation) -> Steps:
    for process in earlier:
        yield Join(process)
    yield operation
