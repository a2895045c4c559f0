"""The energy ledger. Integers of microjoules, so that it balances to the last digit."""

from collections.abc import Mapping
from typing import Any

Consumer = int | str
"""A job id, or `unallocated` or `system`."""
UNALLOCATED = "unallocated"
SYSTEM = "system"
REST = "rest"
CONSUMERS = ("jobs", UNALLOCATED, SYSTEM)


def split(amount: int, weights: Mapping[Consumer, float]) -> dict[Consumer, int]:
    """`amount` in whole parts in proportion to `weights`; the parts add up to it exactly.

    No part is negative. Without any weight the answer is empty.
    """
    positive = {consumer: weight for consumer, weight in weights.items() if weight > 0}
    total = sum(positive.values())
    if not positive or amount <= 0 or not total < float("inf"):
        return {}
    parts = {consumer: int(amount * (weight / total)) for consumer, weight in positive.items()}
    remainder = amount - sum(parts.values())
    # Rounding leaves a few microjoules (or, with huge amounts, takes a few too many): they go to
    # the largest part, which stays positive.
    largest = max(parts, key=lambda consumer: (parts[consumer], str(consumer)))
    parts[largest] += remainder
    return parts


class Ledger:
    """Energy charged to each job, to `unallocated` and to `system`, by component.

    With a meter of the whole node: jobs + unallocated + system + carry = what the meter read.
    Components (GPU, CPU, DRAM) are charged when their counters are read, which may be before the
    meter shows it: the carry is then negative, and what the meter reads next pays it back before
    anything is divided as `rest`. Without a meter the components themselves are what was read.
    """

    def __init__(self) -> None:
        self.accounts: dict[int, dict[str, int]] = {}
        self.estimated: dict[int, int] = {}
        """The part of a job's energy that was estimated."""
        self.totals: dict[tuple[str, str], int] = {}
        """(jobs, unallocated or system; component): lives as long as the node."""
        self.metered = 0
        self.carry = 0
        self.has_meter = False
        self._since_meter = 0

    def charge(
        self,
        component: str,
        amount: int,
        weights: Mapping[Consumer, float],
        estimated: bool = False,
    ) -> None:
        """Charge a component's energy to consumers, by their weights."""
        if amount <= 0:
            return
        if self.has_meter:
            self.carry -= amount
            self._since_meter += amount
        else:
            self.metered += amount
        self._book(component, amount, weights, estimated)

    def meter(self, amount: int, weights: Mapping[Consumer, float], estimated: bool) -> None:
        """Add what the node's meter read; the part that no component used is charged as rest."""
        self.has_meter = True
        self._since_meter = 0
        self.metered += max(0, amount)
        self.carry += max(0, amount)
        if self.carry > 0:
            rest, self.carry = self.carry, 0
            self._book(REST, rest, weights, estimated)

    def begin_meter(self) -> None:
        """Use a meter from now on; energy before it counts by components."""
        self.has_meter = True
        self._since_meter = 0

    def lose_meter(self) -> None:
        """Stop using the meter: what components used since its last reading counts as metered."""
        self.metered += self._since_meter
        self.carry += self._since_meter
        self._since_meter = 0
        self.has_meter = False

    def job(self, jobid: int) -> dict[str, int]:
        """A job's energy by component."""
        return dict(self.accounts.get(jobid, {}))

    def forget(self, jobid: int) -> None:
        """Forget a job whose series have ended; the node's totals keep its energy."""
        self.accounts.pop(jobid, None)
        self.estimated.pop(jobid, None)

    def _book(
        self, component: str, amount: int, weights: Mapping[Consumer, float], estimated: bool
    ) -> None:
        parts = split(amount, weights) or {UNALLOCATED: amount}
        for consumer, uj in parts.items():
            group = "jobs" if isinstance(consumer, int) else consumer
            self.totals[group, component] = self.totals.get((group, component), 0) + uj
            if isinstance(consumer, int):
                account = self.accounts.setdefault(consumer, {})
                account[component] = account.get(component, 0) + uj
                if estimated:
                    self.estimated[consumer] = self.estimated.get(consumer, 0) + uj

    def save(self) -> dict[str, Any]:
        """What the state file keeps."""
        return {
            "accounts": {str(jobid): parts for jobid, parts in self.accounts.items()},
            "estimated": {str(jobid): uj for jobid, uj in self.estimated.items()},
            "totals": [
                [consumer, component, uj] for (consumer, component), uj in self.totals.items()
            ],
            "metered": self.metered,
            "carry": self.carry,
            "has_meter": self.has_meter,
            "since_meter": self._since_meter,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore what `save` returned."""
        self.accounts = {int(jobid): dict(parts) for jobid, parts in saved["accounts"].items()}
        self.estimated = {int(jobid): uj for jobid, uj in saved["estimated"].items()}
        self.totals = {(consumer, component): uj for consumer, component, uj in saved["totals"]}
        self.metered, self.carry = saved["metered"], saved["carry"]
        self.has_meter, self._since_meter = saved["has_meter"], saved["since_meter"]
