"""Operations that a process can yield: compute, transfer, load, wait, and synchronisation.

The engine calls `begin`, which computes when the operation ends and schedules the process for that
time. Operations are immutable, so a process may yield one many times.

`Compute.begin` and `Transfer.begin` repeat a few lines instead of sharing a method: they are most
of all events, and the saved calls are a third of the engine's time.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, Any, Protocol

from carme.errors import InputError
from carme.simulator.events.resources import Barrier, Device, Link, Mailbox, Storage

if TYPE_CHECKING:
    from carme.simulator.events.engine import SimulatedProcess, Simulation


class Operation(Protocol):
    """The interface of operations; a model may define its own."""

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None: ...


def _amount(value: float, quantity: str) -> float:
    if not 0 <= value < float("inf"):
        raise InputError(f"{quantity} is {value}", "it must be a finite number, zero or more")
    return value


class Compute:
    """Keep `device` busy for work / device.rate seconds, after the operations before it."""

    __slots__ = ("label", "resource", "seconds", "watts")

    def __init__(
        self, device: Device, work: float, watts: float | None = None, label: str = "compute"
    ) -> None:
        self.resource = device
        if not 0 <= work < 1e300:
            _amount(work, f"work on {device.name}")
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
            _amount(size, "bytes of a transfer")
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


class Wait:
    """Do nothing for `seconds`, without a resource."""

    __slots__ = ("label", "seconds")

    def __init__(self, seconds: float, label: str = "wait") -> None:
        self.seconds = _amount(seconds, "a wait")
        self.label = label

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        now = simulation.now
        end = now + self.seconds
        simulation.record((process, self.label, None, now, now, end, 0.0, 0.0))
        simulation.schedule(end, process)


class Arrive:
    """Wait at a barrier until its last party has arrived."""

    __slots__ = ("barrier",)

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        waiting = self.barrier.waiting
        waiting.append((process, simulation.now))
        if len(waiting) < self.barrier.parties:
            process.blocked_on = self.barrier.name
            return
        for arrived, since in waiting:
            simulation.release(arrived, "barrier", since)
        waiting.clear()


class Put:
    """Put `item` into a mailbox; takes no time."""

    __slots__ = ("item", "mailbox")

    def __init__(self, mailbox: Mailbox, item: Any = None) -> None:
        self.mailbox = mailbox
        self.item = item

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.mailbox.readers:
            reader, since = self.mailbox.readers.popleft()
            simulation.release(reader, "receive", since, self.item)
        else:
            self.mailbox.items.append(self.item)
        simulation.schedule(simulation.now, process)


class Get:
    """Take the oldest item of a mailbox, which `yield` returns; waits until there is one."""

    __slots__ = ("mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.mailbox.items:
            simulation.schedule(simulation.now, process, self.mailbox.items.popleft())
        else:
            process.blocked_on = self.mailbox.name
            self.mailbox.readers.append((process, simulation.now))


class Join:
    """Wait until another process has ended; `yield` returns its return value."""

    __slots__ = ("other",)

    def __init__(self, other: SimulatedProcess) -> None:
        self.other = other

    def begin(self, simulation: Simulation, process: SimulatedProcess) -> None:
        if self.other.ended:
            simulation.schedule(simulation.now, process, self.other.value)
        else:
            process.blocked_on = f"the end of {self.other.name}"
            self.other.joiners.append((process, simulation.now))
