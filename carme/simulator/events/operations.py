"""Operations that a process can yield (compute, transfer, load, wait, and synchronisation) and the
resources they use (devices, links, storage, barriers and mailboxes).

The engine calls `begin`, which computes when the operation ends and schedules the process for that
time. Operations are immutable, so a process may yield one many times.

`Compute.begin` and `Transfer.begin` repeat a few lines instead of sharing a method: they are most
of all events, and the saved calls are a third of the engine's time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from heapq import heappush
from typing import TYPE_CHECKING, Any, Protocol

from carme.errors import InputError

if TYPE_CHECKING:
    from carme.simulator.events.engine import SimulatedProcess, Simulation


class Operation(Protocol):
    """The interface of operations; a model may define its own."""

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None: ...


def _check(value: float, quantity: str, *, allow_zero: bool = True) -> None:
    """Raises InputError unless the value is finite and above zero, or zero where allowed."""
    if not 0 <= value < float("inf") or (value == 0 and not allow_zero):
        limit = ", zero or more" if allow_zero else " above zero"
        raise InputError(f"{quantity} is {value}", f"it must be a finite number{limit}")


@dataclass(slots=True, eq=False)
class Resource:
    """A resource with an idle draw, and a busy draw while an operation holds it."""

    name: str
    _: KW_ONLY
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    free_at: float = field(default=0.0, init=False)
    busy_seconds: float = field(default=0.0, init=False)
    extra_joules: float = field(default=0.0, init=False)
    """Of operations with their own watts, relative to `busy_watts`."""

    def __post_init__(self) -> None:
        _check(self.idle_watts, f"idle watts of {self.name}")
        _check(self.busy_watts, f"busy watts of {self.name}")
        self.busy_watts = max(self.busy_watts, self.idle_watts)

    def joules(self, seconds: float) -> float:
        """Energy over a run of `seconds`, idle power included."""
        busy = (self.busy_watts - self.idle_watts) * self.busy_seconds
        return self.idle_watts * seconds + busy + self.extra_joules


@dataclass(slots=True, eq=False)
class Device(Resource):
    """Computes one operation after the other, first come, `rate` units of work per second; work is
    in seconds with the default rate."""

    rate: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        Resource.__post_init__(self)
        _check(self.rate, f"rate of {self.name}", allow_zero=False)


@dataclass(slots=True, eq=False)
class Link(Resource):
    """Carries bytes: one transfer at a time, first come, or all at once in fair shares."""

    _: KW_ONLY
    bandwidth: float
    latency: float = 0.0
    fair: bool = False
    bytes: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        Resource.__post_init__(self)
        _check(self.bandwidth, f"bandwidth of {self.name}", allow_zero=False)
        _check(self.latency, f"latency of {self.name}")


@dataclass(slots=True, eq=False)
class Storage(Link):
    """A link from which data sets are read; by default shared fairly by its readers."""

    fair: bool = field(default=True, kw_only=True)


@dataclass(slots=True, eq=False)
class Barrier:
    """A barrier of `parties` processes; `parties` may change while nobody waits."""

    parties: int
    name: str = "barrier"
    waiting: list[tuple[SimulatedProcess, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.parties < 1:
            raise InputError(f"{self.name} has {self.parties} parties", "at least 1")


@dataclass(slots=True, eq=False)
class Mailbox:
    """A queue of items, and of readers that wait for one; both first in, first out."""

    name: str = "mailbox"
    items: deque[Any] = field(default_factory=deque, init=False)
    readers: deque[tuple[SimulatedProcess, float]] = field(default_factory=deque, init=False)


class Compute:
    """Keep `device` busy for work / device.rate seconds, after the operations before it."""

    __slots__ = ("label", "resource", "seconds", "watts")

    def __init__(
        self, device: Device, work: float, watts: float | None = None, label: str = "compute"
    ) -> None:
        self.resource = device
        if not 0 <= work < 1e300:
            _check(work, f"work on {device.name}")
        self.seconds = work / device.rate
        self.watts = watts
        self.label = label

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        device = self.resource
        now = simulation.now
        start = device.free_at
        if start < now:
            start = now
        seconds = self.seconds
        device.free_at = end = start + seconds
        device.busy_seconds += seconds
        watts = self.watts
        if watts is None:
            watts = device.busy_watts
        else:
            device.extra_joules += (watts - device.busy_watts) * seconds
        simulation.record((process, self.label, device, now, start, end, 0.0, watts))
        simulation.sequence = sequence = simulation.sequence + 1
        heappush(simulation.calendar, (end, process.priority, sequence, process, None))


class Transfer:
    """Send `size` bytes over one link, or over a path of fairly shared links at once.

    A first-come link is held for latency + size / bandwidth. On fairly shared links the bytes
    start to flow after the latency, at the max-min fair rate and at most at `limit` bytes a second.
    """

    __slots__ = ("ends", "label", "limit", "path", "size")

    def __init__(
        self,
        link: Link | tuple[Link, ...],
        size: float,
        source: str = "",
        target: str = "",
        limit: float = float("inf"),
        label: str = "transfer",
    ) -> None:
        self.path = link
        self.size = size
        self.ends = (source, target) if source or target else None
        self.limit = limit
        self.label = label
        if not 0 <= size < 1e300:
            _check(size, "bytes of a transfer")
        if isinstance(link, tuple) and not all(each.fair for each in link):
            raise InputError(
                f"a path over {', '.join(each.name for each in link)}",
                "only fairly shared links can be combined; use one transfer after the other",
            )

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        link = self.path
        if isinstance(link, tuple) or link.fair:
            simulation.sharing.request(simulation, process, self)
            return
        now = simulation.now
        start = link.free_at
        if start < now:
            start = now
        size = self.size
        seconds = link.latency + size / link.bandwidth
        link.free_at = end = start + seconds
        link.busy_seconds += seconds
        link.bytes += size
        if self.ends:
            simulation.deliver(*self.ends, size)
        simulation.record((process, self.label, link, now, start, end, size, link.busy_watts))
        simulation.sequence = sequence = simulation.sequence + 1
        heappush(simulation.calendar, (end, process.priority, sequence, process, None))


class Load(Transfer):
    """Read `size` bytes from storage, at most at `limit` bytes per second."""

    __slots__ = ()

    def __init__(
        self, storage: Storage, size: float, *, limit: float = float("inf"), label: str = "load"
    ) -> None:
        super().__init__(storage, size, source=storage.name, limit=limit, label=label)


@dataclass(slots=True, eq=False)
class Wait:
    """Do nothing for `seconds`, without a resource."""

    seconds: float
    label: str = "wait"

    def __post_init__(self) -> None:
        _check(self.seconds, "a wait")

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        now = simulation.now
        end = now + self.seconds
        simulation.record((process, self.label, None, now, now, end, 0.0, 0.0))
        simulation.schedule(end, process)


@dataclass(slots=True, eq=False)
class Arrive:
    """Wait at a barrier until its last party has arrived."""

    barrier: Barrier

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        waiting = self.barrier.waiting
        waiting.append((process, simulation.now))
        if len(waiting) < self.barrier.parties:
            process.blocked_on = self.barrier.name
            return
        for arrived, since in waiting:
            simulation.release(arrived, "barrier", since)
        waiting.clear()


@dataclass(slots=True, eq=False)
class Put:
    """Put `item` into a mailbox; takes no time."""

    mailbox: Mailbox
    item: Any = None

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.mailbox.readers:
            reader, since = self.mailbox.readers.popleft()
            simulation.release(reader, "receive", since, self.item)
        else:
            self.mailbox.items.append(self.item)
        simulation.schedule(simulation.now, process)


@dataclass(slots=True, eq=False)
class Get:
    """Take the oldest item of a mailbox, which `yield` returns; waits until there is one."""

    mailbox: Mailbox

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.mailbox.items:
            simulation.schedule(simulation.now, process, self.mailbox.items.popleft())
        else:
            process.blocked_on = self.mailbox.name
            self.mailbox.readers.append((process, simulation.now))


@dataclass(slots=True, eq=False)
class Join:
    """Wait until another process has ended; `yield` returns its return value."""

    other: SimulatedProcess

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.other.ended:
            simulation.schedule(simulation.now, process, self.other.value)
        else:
            process.blocked_on = f"the end of {self.other.name}"
            self.other.joiners.append((process, simulation.now))
