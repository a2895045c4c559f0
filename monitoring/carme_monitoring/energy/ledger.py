"""The energy ledger. Integers of microjoules, so that it balances to the last digit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from carme_monitoring.json_keys import PairKey

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


@dataclass
class Ledger:
    """Energy charged to each job, to `unallocated` and to `system`, by component.

    With a meter of the whole node: jobs + unallocated + system + carry = what the meter read.
    Components (GPU, CPU, DRAM) are charged when their counters are read, which may be before the
    meter shows it: the carry is then negative, and what the meter reads next pays it back before
    anything is divided as `rest`. Without a meter the components themselves are what was read.
    """

    accounts: dict[int, dict[str, int]] = field(default_factory=dict)
    estimated: dict[int, int] = field(default_factory=dict)
    """The part of a job's energy that was estimated."""
    totals: dict[PairKey, int] = field(default_factory=dict)
    """(jobs, unallocated or system; component): lives as long as the node."""
    metered: int = 0
    carry: int = 0
    has_meter: bool = False
    since_meter: int = 0
    """Charged to components since the meter's last reading."""

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
            self.since_meter += amount
        else:
            self.metered += amount
        self._book(component, amount, weights, estimated)

    def meter(self, amount: int, weights: Mapping[Consumer, float], estimated: bool) -> None:
        """Add what the node's meter read; the part that no component used is charged as rest."""
        self.has_meter = True
        self.since_meter = 0
        self.metered += max(0, amount)
        self.carry += max(0, amount)
        if self.carry > 0:
            rest, self.carry = self.carry, 0
            self._book(REST, rest, weights, estimated)

    def begin_meter(self) -> None:
        """Use a meter from now on; energy before it counts by components."""
        self.has_meter = True
        self.since_meter = 0

    def lose_meter(self) -> None:
        """Stop using the meter: what components used since its last reading counts as metered."""
        self.metered += self.since_meter
        self.carry += self.since_meter
        self.since_meter = 0
        self.has_meter = False

    def job(self, jobid: int) -> dict[str, int]:
        """A job's energy by component."""
        return dict(self.accounts.get(jobid, {}))

    def forget(self, jobid: int) -> None:
        """Forget a job whose series have ended; the node's totals keep its energy."""
        self.accounts.pop(jobid, None)
        self.estimated.pop(jobid, None)

    def after_reboot(self) -> None:
        """Forget the jobs, which are gone, and the meter, which may have missed a part."""
        self.accounts.clear()
        self.estimated.clear()
        if self.has_meter:
            self.lose_meter()

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
