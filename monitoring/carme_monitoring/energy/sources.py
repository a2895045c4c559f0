"""Counters and gauges of energy: what they gained since they were last read, in microjoules."""

from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["first", "counted", "wrapped", "reset", "rejected", "estimated", "same"]
MAX_GAUGE_GAP_NS = 3600 * 10**9
"""A longer gap between two readings of a gauge is not counted."""
_SLACK_UJ = 5_000_000
"""What a counter may show beyond its limit: counters advance in steps."""
_MAX_REJECTS = 3
"""After so many rejected readings the counter starts again from the last one. A glitch is over
sooner, and the reading after it counts for the whole time."""


@dataclass(frozen=True)
class Gain:
    """What a source gained between two readings."""

    uj: int
    from_ns: int
    to_ns: int
    outcome: Outcome


@dataclass
class CounterSource:
    """An energy counter. It may wrap at a known range or begin again from zero."""

    max_watts: float
    range_uj: int | None = None
    value_uj: int = 0
    at_ns: int = -1
    rejects: int = 0

    def advance(self, value_uj: int, at_ns: int) -> Gain:
        """The gain since the last reading.

        A counter that went down has wrapped if the gain is then within `max_watts` for the time;
        otherwise it was reset to zero. A gain above `max_watts` is rejected and counts nothing.
        """
        if self.at_ns < 0:
            self.value_uj, self.at_ns = value_uj, at_ns
            return Gain(0, at_ns, at_ns, "first")
        if at_ns <= self.at_ns:
            return Gain(0, self.at_ns, self.at_ns, "same")
        from_ns, gained = self.at_ns, value_uj - self.value_uj
        outcome: Outcome = "counted"
        if gained < 0 and self.range_uj and value_uj <= self.range_uj:
            gained, outcome = gained + self.range_uj, "wrapped"
            if gained > self._most(at_ns) and value_uj <= self._most(at_ns):
                gained, outcome = value_uj, "reset"  # more than it can have used: it was reset
        elif gained < 0:
            gained, outcome = value_uj, "reset"
        if value_uj < 0 or gained > self._most(at_ns):
            self.rejects += 1
            if self.rejects >= _MAX_REJECTS and value_uj >= 0:  # it stays: begin again from here
                self.value_uj, self.at_ns, self.rejects = value_uj, at_ns, 0
            return Gain(0, from_ns, from_ns, "rejected")
        self.value_uj, self.at_ns, self.rejects = value_uj, at_ns, 0
        return Gain(gained, from_ns, at_ns, outcome)

    def _most(self, at_ns: int) -> int:
        return round(self.max_watts * (at_ns - self.at_ns) / 1000) + _SLACK_UJ

    def save(self) -> list[Any]:
        return [self.value_uj, self.at_ns]


@dataclass
class GaugeSource:
    """A power reading, integrated by the trapezoidal rule; gaps are estimated and say so."""

    max_watts: float
    max_step_ns: int
    """A longer time between readings is a gap."""
    watts: float = 0.0
    at_ns: int = -1

    def advance(self, watts: float, at_ns: int) -> Gain:
        """The energy since the last reading."""
        if not 0 <= watts <= self.max_watts:
            return Gain(0, self.at_ns, self.at_ns, "rejected")
        from_ns, before = self.at_ns, self.watts
        if from_ns >= 0 and at_ns <= from_ns:
            return Gain(0, from_ns, from_ns, "same")
        self.watts, self.at_ns = watts, at_ns
        if from_ns < 0 or at_ns - from_ns > MAX_GAUGE_GAP_NS:
            return Gain(0, at_ns, at_ns, "first")
        gained = round((before + watts) / 2 * (at_ns - from_ns) / 1000)
        is_gap = at_ns - from_ns > self.max_step_ns
        return Gain(gained, from_ns, at_ns, "estimated" if is_gap else "counted")

    def save(self) -> list[Any]:
        return [self.watts, self.at_ns]
