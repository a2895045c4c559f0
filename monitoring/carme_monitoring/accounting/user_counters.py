"""Counters of users and accounts on this node: they live longer than the jobs.

`increase()` does not see a counter's first value, so rates of users and accounts cannot be made
from the counters of jobs. These grow by whatever the jobs' grow by. A series that is new is shown
as zero until Prometheus must have read it, so that its first value is not lost either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from carme_monitoring.samples import Samples

Owner = tuple[str, str, str]
"""User, account, partition."""
Figure = tuple[str, ...]
"""The name of what is counted, and label values beyond the owner's."""
JobFigures = tuple[int, Owner, Mapping[Figure, float]]
"""A job, its owner and its figures."""
_FORGET_NS = 24 * 3600 * 10**9
"""An owner without a job here for a day: the series end, or they would grow with the years."""


@dataclass
class _Total:
    value: float
    since_ns: int
    last_ns: int


class UserCounters:
    """The totals, kept up by `count`."""

    def __init__(self, hold_seconds: float) -> None:
        self._hold_ns = round(hold_seconds * 1e9)
        self._totals: dict[Owner, dict[Figure, _Total]] = {}
        self._counted: dict[int, dict[Figure, float]] = {}
        """A job's figures as they were when last counted."""
        self.node: dict[Figure, float] = {}
        """The same for all jobs of the node together."""

    def count(self, jobs: Iterable[JobFigures], at_ns: int) -> None:
        """Add what the figures of each job grew by since the last call."""
        for jobid, owner, figures in jobs:
            before = self._counted.setdefault(jobid, {})
            totals = self._totals.setdefault(owner, {})
            for figure, value in figures.items():
                gained = max(0.0, value - before.get(figure, 0.0))
                before[figure] = value
                total = totals.setdefault(figure, _Total(0.0, at_ns, at_ns))
                total.value += gained
                total.last_ns = at_ns
                self.node[figure] = self.node.get(figure, 0.0) + gained
        for owner in [o for o, totals in self._totals.items() if _is_old(totals, at_ns)]:
            del self._totals[owner]

    def forget(self, jobid: int) -> None:
        """The job's series have ended; its owner's keep what it used."""
        self._counted.pop(jobid, None)

    def add_samples(self, out: Samples, at_ns: int) -> None:
        """`carme_owner_…` for every owner."""
        for owner, totals in self._totals.items():
            for (name, *more), total in totals.items():
                shown = total.value if at_ns - total.since_ns >= self._hold_ns else 0.0
                out.add(f"carme_owner_{name}_total", (*owner, *more), round(shown, 6))

    def save(self) -> dict[str, Any]:
        """What the state file keeps."""
        return {
            "totals": [
                [owner, figure, total.value, total.since_ns, total.last_ns]
                for owner, totals in self._totals.items()
                for figure, total in totals.items()
            ],
            "counted": [
                [jobid, figure, value]
                for jobid, figures in self._counted.items()
                for figure, value in figures.items()
            ],
            "node": [[figure, value] for figure, value in self.node.items()],
        }

    def restore(self, saved: Mapping[str, Any], is_same_boot: bool) -> None:
        """Take up what `save` gave; after a reboot jobs are gone and the clock starts at zero."""
        for owner, figure, value, since_ns, last_ns in saved["totals"]:
            total = (
                _Total(value, since_ns, last_ns)
                if is_same_boot
                else _Total(value, -self._hold_ns, 0)
            )
            user, account, partition = owner
            self._totals.setdefault((user, account, partition), {})[tuple(figure)] = total
        self.node = {tuple(figure): value for figure, value in saved["node"]}
        if is_same_boot:
            for jobid, figure, value in saved["counted"]:
                self._counted.setdefault(jobid, {})[tuple(figure)] = value


def _is_old(totals: Mapping[Figure, _Total], at_ns: int) -> bool:
    return all(at_ns - total.last_ns > _FORGET_NS for total in totals.values())
