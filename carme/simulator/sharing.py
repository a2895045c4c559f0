"""Max-min fair sharing: flows over links, each rate as large as it can be without taking from a
smaller one. Rates change only when a flow starts or ends, so the state is exact between events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carme.simulator.resources import Link

if TYPE_CHECKING:
    from carme.simulator.engine import Process, Simulation
    from carme.simulator.operations import Transfer


class Flow:
    """One transfer under way."""

    __slots__ = ("left", "links", "process", "rate", "since", "transfer")

    def __init__(self, process: Process, transfer: Transfer, since: float) -> None:
        self.process = process
        self.transfer = transfer
        self.links = transfer.path if isinstance(transfer.path, tuple) else (transfer.path,)
        self.left = transfer.size
        self.rate = 0.0
        self.since = since


def fill(flows: list[Flow]) -> None:
    """Set the max-min fair rate of every flow by progressive filling.

    All rates rise together; a flow stops at its own limit or when one of its links is full.
    """
    spare: dict[Link, float] = {}
    count: dict[Link, int] = {}
    for flow in flows:
        for link in flow.links:
            spare[link] = link.bandwidth
            count[link] = count.get(link, 0) + 1
    growing = list(flows)
    level = 0.0
    while growing:
        room = min(spare[link] / count[link] for link in spare if count[link])
        level = min(level + room, *(flow.transfer.limit for flow in growing))
        stopped = [f for f in growing if f.transfer.limit <= level] or _on_full_links(
            growing, spare, count
        )
        for flow in stopped:
            # All rates rise together, so what a link has left is its bandwidth less the
            # stopped flows and `level` for each flow that still grows.
            flow.rate = min(level, flow.transfer.limit)
            growing.remove(flow)
        for link in spare:
            count[link] = sum(link in f.links for f in growing)
            used = sum(f.rate for f in flows if f not in growing and link in f.links)
            spare[link] = max(link.bandwidth - used - level * count[link], 0.0)


def _on_full_links(
    growing: list[Flow], spare: dict[Link, float], count: dict[Link, int]
) -> list[Flow]:
    tightest = min((link for link in spare if count[link]), key=lambda k: spare[k] / count[k])
    return [flow for flow in growing if tightest in flow.links]


class Sharing:
    """All fairly shared links of one simulation, and the flows on them."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self._last = 0.0
        self._version = 0

    def request(self, simulation: Simulation, process: Process, transfer: Transfer) -> None:
        """Start the flow after the path's latency."""
        if transfer.ends:
            simulation.deliver(*transfer.ends, transfer.size)
        flow = Flow(process, transfer, simulation.now)
        latency = sum(link.latency for link in flow.links)
        if latency:
            simulation.call_at(simulation.now + latency, lambda: self._start(simulation, flow))
        else:
            self._start(simulation, flow)

    def _start(self, simulation: Simulation, flow: Flow) -> None:
        self._advance(simulation.now)
        self.flows.append(flow)
        self._plan(simulation)

    def _advance(self, now: float) -> None:
        passed = now - self._last
        for flow in self.flows:
            flow.left -= flow.rate * passed
        self._last = now

    def _plan(self, simulation: Simulation) -> None:
        """Give everyone the new fair rate and come back when the first flow ends."""
        self._version += 1
        if not self.flows:
            return
        fill(self.flows)
        first = min(max(flow.left, 0.0) / flow.rate for flow in self.flows)
        ending = [f for f in self.flows if f.left <= first * f.rate * (1 + 1e-12)]
        version = self._version
        simulation.call_at(simulation.now + first, lambda: self._end(simulation, version, ending))

    def _end(self, simulation: Simulation, version: int, ending: list[Flow]) -> None:
        if version != self._version:
            return  # rates changed since this was planned
        self._advance(simulation.now)
        for flow in ending:
            self.flows.remove(flow)
            simulation.arrived(flow)
        self._plan(simulation)
