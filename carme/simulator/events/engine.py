"""The event engine: processes that yield operations, a calendar ordered by (time, priority,
sequence), and a record of energy, bytes and every operation.

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
from collections.abc import Callable, Generator, Iterable
from heapq import heappop, heappush
from typing import Any, TypeVar

from carme.errors import InputError
from carme.simulator.events.link_sharing import Flow, Sharing
from carme.simulator.events.operations import Operation
from carme.simulator.events.resources import Barrier, Device, Link, Mailbox, Resource, Storage
from carme.simulator.events.trace import TraceReport

R = TypeVar("R", bound=Resource)
FIRST = -1_000_000
"""Priority of the engine's own calls: before any process of the same time."""
Steps = Generator[Operation, Any, Any]


class SimulatedProcess:
    """A running generator, its name in the trace and its priority among simultaneous events."""

    __slots__ = ("blocked_on", "ended", "joiners", "name", "priority", "send", "value")

    def __init__(self, steps: Steps, name: str, priority: int) -> None:
        self.send = steps.send
        self.name = name
        self.priority = priority
        self.blocked_on = ""
        self.ended = False
        self.value: Any = None
        self.joiners: list[tuple[SimulatedProcess, float]] = []


def _discard(_: Iterable[Any]) -> None:
    """Records nothing, for a simulation without a trace."""


class Call:
    """A function on the calendar, with the interface of a process and of an operation."""

    __slots__ = ("cancelled", "function")

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.cancelled = False

    def send(self, _: Any) -> Call:
        self.function()
        return self

    def begin(self, simulation: Simulation, process: Any) -> None:
        """Does nothing: a call has no next operation."""


class Simulation:
    """A model and its run. The same calls always give the same events."""

    def __init__(self, *, trace: bool = True) -> None:
        self.now = 0.0
        self.sharing = Sharing()
        self.resources: list[Resource] = []
        self.sent: defaultdict[str, float] = defaultdict(float)
        self.received: defaultdict[str, float] = defaultdict(float)
        self._processes: list[SimulatedProcess] = []
        self.calendar: list[tuple[float, int, int, Any, Any]] = []
        self.sequence = 0
        self._records: list[Any] = []
        self.record: Callable[[Iterable[Any]], None] = self._records.extend if trace else _discard

    # Building a model

    def device(
        self, name: str, *, rate: float = 1.0, idle_watts: float = 0.0, busy_watts: float = 0.0
    ) -> Device:
        """A new device; its work is in seconds unless `rate` says otherwise."""
        return self._add(Device(name, rate=rate, idle_watts=idle_watts, busy_watts=busy_watts))

    def link(
        self,
        name: str,
        *,
        bandwidth: float,
        latency: float = 0.0,
        fair: bool = False,
        idle_watts: float = 0.0,
        busy_watts: float = 0.0,
    ) -> Link:
        """A new link: first come, first served unless `fair`."""
        link = Link(
            name,
            bandwidth=bandwidth,
            latency=latency,
            fair=fair,
            idle_watts=idle_watts,
            busy_watts=busy_watts,
        )
        return self._add(link)

    def storage(self, name: str, *, bandwidth: float, latency: float = 0.0) -> Storage:
        """New storage, shared fairly by its readers."""
        return self._add(Storage(name, bandwidth=bandwidth, latency=latency))

    def barrier(self, parties: int, name: str = "barrier") -> Barrier:
        """A new barrier of `parties` processes."""
        return Barrier(parties, name)

    def mailbox(self, name: str = "mailbox") -> Mailbox:
        """A new mailbox."""
        return Mailbox(name)

    def process(self, steps: Steps, name: str = "", priority: int = 0) -> SimulatedProcess:
        """Start a process now (before `run`, or from inside another process)."""
        process = SimulatedProcess(steps, name or f"process {len(self._processes)}", priority)
        self._processes.append(process)
        self.schedule(self.now, process)
        return process

    def _add(self, resource: R) -> R:
        self.resources.append(resource)
        return resource

    # What operations call

    def schedule(self, time: float, process: Any, value: Any = None) -> None:
        """Resume `process` at `time`; `yield` then gives back `value`."""
        self.sequence += 1
        heappush(self.calendar, (time, process.priority, self.sequence, process, value))

    def call_at(self, time: float, function: Callable[[], None]) -> Call:
        """Run a function at `time`, before processes of the same time, unless it is cancelled."""
        call = Call(function)
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
        transfer, since = flow.transfer, flow.since
        self.record(
            (
                flow.process,
                transfer.label,
                flow.links[0],
                since,
                since,
                self.now,
                transfer.size,
                0.0,
            )
        )
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
                self._end(process, end.value)
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
        if not calendar:
            self._check_deadlock()
        return TraceReport(
            self.now, self._records, self.resources, dict(self.sent), dict(self.received)
        )

    def _end(self, process: SimulatedProcess, value: Any) -> None:
        process.ended = True
        process.value = value
        for joiner, since in process.joiners:
            self.release(joiner, "join", since, value)

    def _check_deadlock(self) -> None:
        waiting = [f"{p.name} (for {p.blocked_on})" for p in self._processes if p.blocked_on]
        if waiting:
            raise InputError(
                f"the model stands still at {self.now:g} s: {len(waiting)} processes wait: "
                + ", ".join(waiting[:5]),
                "nothing is left that could wake them",
            )
