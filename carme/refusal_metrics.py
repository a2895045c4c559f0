"""Prometheus' counter of refusals, for hub and service."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from carme.fair_use import FairGate, RateLimiter, refusals


class RefusalMetrics(Collector):
    """`NAME_total{limit}`: the refusals of some limits since the process started."""

    def __init__(self, name: str, *limits: FairGate | RateLimiter) -> None:
        self._name, self._limits = name, limits

    def describe(self) -> Iterable[CounterMetricFamily]:
        return ()

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            self._name, "Requests refused because a user reached a limit.", labels=("limit",)
        )
        for limit, count in refusals(*self._limits).items():
            family.add_metric([limit], count)
        return (family,)
