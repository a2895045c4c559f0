"""The report of a run: every operation, power over time, energy, bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.events.resources import Resource


class OperationRecord(NamedTuple):
    """One completed operation; from `asked` to `start` it waited for the resource."""

    process: str
    label: str
    resource: str
    asked: float
    start: float
    end: float
    size_bytes: float
    watts: float


class TraceReport:
    """Operations, bytes and energy of a run of the engine; energy is that of its resources."""

    def __init__(
        self,
        seconds: float,
        flat: list[Any],
        resources: list[Resource],
        sent: dict[str, float],
        received: dict[str, float],
    ) -> None:
        self.seconds = seconds
        self.resources = resources
        self.sent_bytes = sent
        self.received_bytes = received
        self._flat = flat  # fields in one flat list, which the garbage collector need not scan

    def records(self) -> Iterator[OperationRecord]:
        """Operations in the order they began (fairly shared transfers: in which they ended)."""
        for process, label, resource, *figures in self._entries():
            yield OperationRecord(process.name, label, resource.name if resource else "", *figures)

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        return zip(*[iter(self._flat)] * len(OperationRecord._fields), strict=True)

    @property
    def operations(self) -> int:
        """Number of completed operations."""
        return len(self._flat) // len(OperationRecord._fields)

    def joules(self, name: str | None = None) -> float:
        """Energy of one resource, or of all."""
        chosen = (r for r in self.resources if name is None or r.name == name)
        return sum(resource.joules(self.seconds) for resource in chosen)

    def seconds_by_label(self) -> dict[str, float]:
        """Time in each kind of operation, summed over processes."""
        total: defaultdict[str, float] = defaultdict(float)
        for _, label, _, _, start, end, _, _ in self._entries():
            total[label] += end - start
        return dict(total)

    def power_curve(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times and watts of a first-come resource: watts[i] holds from times[i] to times[i+1]."""
        resource = next(r for r in self.resources if r.name == name)
        held = sorted(
            (start, end, watts)
            for _, _, holder, _, start, end, _, watts in self._entries()
            if holder is resource
        )
        times, curve = [0.0], []
        for start, end, power in held:
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
