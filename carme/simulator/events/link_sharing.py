"""Max-min fair sharing of links: each flow gets the largest rate that takes nothing from a slower
one. Rates change only when a flow starts or ends, so the state is exact between events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from carme.simulator.events.operations import Link

if TYPE_CHECKING:
    from carme.simulator.events.engine import ScheduledCall, SimulatedProcess, Simulation
    from carme.simulator.events.operations import Transfer


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer under way."""

    process: SimulatedProcess
    transfer: Transfer
    since: float
    links: tuple[Link, ...] = field(init=False)
    remaining_bytes: float = field(init=False)
    rate: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        path = self.transfer.path
        self.links = path if isinstance(path, tuple) else (path,)
        self.remaining_bytes = self.transfer.size


def set_fair_rates(flows: list[Flow]) -> None:
    """Set the max-min fair rate of every flow by progressive filling.

    All rates rise together; a flow stops at its own limit or when one of its links is full. What
    stopped flows leave of a link is shared by those that still rise.
    """
    spare: dict[Link, float] = {}
    rising: dict[Link, dict[Flow, None]] = {}  # dictionaries, because sets have no order
    for flow in flows:
        for link in flow.links:
            spare[link] = link.bandwidth
            rising.setdefault(link, {})[flow] = None
    rising_flows = dict.fromkeys(flows)
    while rising_flows:
        share, tightest = min(
            ((spare[link] / len(users), link) for link, users in rising.items() if users),
            key=lambda pair: pair[0],
        )
        limit = min(flow.transfer.limit for flow in rising_flows)
        level = min(share, limit)
        stopped = (
            [flow for flow in rising_flows if flow.transfer.limit <= level]
            if limit <= share
            else list(rising[tightest])
        )
        for flow in stopped:
            flow.rate = level
            del rising_flows[flow]
            for link in flow.links:
                spare[link] = max(spare[link] - level, 0.0)
                del rising[link][flow]


class LinkSharing:
    """All fairly shared links of one simulation, and the flows on them."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self._last = 0.0
        self._next: ScheduledCall | None = None

    def request(
        self, simulation: Simulation, process: SimulatedProcess, transfer: Transfer
    ) -> None:
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
            flow.remaining_bytes -= flow.rate * passed
        self._last = now

    def _plan(self, simulation: Simulation) -> None:
        """Set the fair rate of every flow and schedule the end of the first to finish."""
        if self._next:
            self._next.cancelled = True
        self._next = None
        if not self.flows:
            return
        set_fair_rates(self.flows)
        seconds = min(max(flow.remaining_bytes, 0.0) / flow.rate for flow in self.flows)
        ending = [f for f in self.flows if f.remaining_bytes <= seconds * f.rate * (1 + 1e-12)]
        end = simulation.now + seconds
        self._next = simulation.call_at(end, lambda: self._end(simulation, ending))

    def _end(self, simulation: Simulation, ending: list[Flow]) -> None:
        self._advance(simulation.now)
        for flow in ending:
            self.flows.remove(flow)
            simulation.arrived(flow)
        self._plan(simulation)
