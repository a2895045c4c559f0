"""Resources of operations: devices, links, storage, barriers and mailboxes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from carme.errors import InputError

if TYPE_CHECKING:
    from carme.simulator.events.engine import SimulatedProcess


def positive(value: float, quantity: str) -> float:
    """`value`. Raises InputError unless it is finite and above zero."""
    if not 0 < value < float("inf"):
        raise InputError(f"{quantity} is {value}", "it must be a finite number above zero")
    return value


class Resource:
    """A resource with an idle draw, and a busy draw while an operation holds it."""

    __slots__ = ("busy_seconds", "busy_watts", "extra_joules", "free_at", "idle_watts", "name")

    def __init__(self, name: str, *, idle_watts: float = 0.0, busy_watts: float = 0.0) -> None:
        if not 0 <= idle_watts < float("inf") or not 0 <= busy_watts < float("inf"):
            raise InputError(
                f"{name}: {idle_watts} W idle, {busy_watts} W busy", "watts are finite, ≥ 0"
            )
        self.name = name
        self.idle_watts = idle_watts
        self.busy_watts = max(busy_watts, idle_watts)
        self.free_at = 0.0
        self.busy_seconds = 0.0
        self.extra_joules = 0.0  # of operations with their own watts, relative to busy_watts

    def joules(self, seconds: float) -> float:
        """Energy over a run of `seconds`, idle power included."""
        busy = (self.busy_watts - self.idle_watts) * self.busy_seconds
        return self.idle_watts * seconds + busy + self.extra_joules


class Device(Resource):
    """Computes one operation after the other, first come, `rate` units of work per second."""

    __slots__ = ("rate",)

    def __init__(
        self, name: str, *, rate: float = 1.0, idle_watts: float = 0.0, busy_watts: float = 0.0
    ) -> None:
        super().__init__(name, idle_watts=idle_watts, busy_watts=busy_watts)
        self.rate = positive(rate, f"rate of {name}")


class Link(Resource):
    """Carries bytes: one transfer at a time, first come, or all at once in fair shares."""

    __slots__ = ("bandwidth", "bytes", "fair", "latency")

    def __init__(
        self,
        name: str,
        *,
        bandwidth: float,
        latency: float = 0.0,
        fair: bool = False,
        idle_watts: float = 0.0,
        busy_watts: float = 0.0,
    ) -> None:
        super().__init__(name, idle_watts=idle_watts, busy_watts=busy_watts)
        self.bandwidth = positive(bandwidth, f"bandwidth of {name}")
        if not 0 <= latency < float("inf"):
            raise InputError(f"latency of {name} is {latency}", "it must be finite, zero or more")
        self.latency = latency
        self.fair = fair
        self.bytes = 0.0


class Storage(Link):
    """A link from which data sets are read; by default shared fairly."""

    __slots__ = ()

    def __init__(
        self, name: str, *, bandwidth: float, latency: float = 0.0, fair: bool = True
    ) -> None:
        super().__init__(name, bandwidth=bandwidth, latency=latency, fair=fair)


class Barrier:
    """A barrier of `parties` processes; `parties` may change while nobody waits."""

    __slots__ = ("name", "parties", "waiting")

    def __init__(self, parties: int, name: str = "barrier") -> None:
        if parties < 1:
            raise InputError(f"{name} has {parties} parties", "at least 1")
        self.parties = parties
        self.name = name
        self.waiting: list[tuple[SimulatedProcess, float]] = []


class Mailbox:
    """A queue of items, and of readers that wait for one; both first in, first out."""

    __slots__ = ("items", "name", "readers")

    def __init__(self, name: str = "mailbox") -> None:
        self.name = name
        self.items: deque[Any] = deque()
        self.readers: deque[tuple[SimulatedProcess, float]] = deque()
