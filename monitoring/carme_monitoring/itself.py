"""The exporter's own process, through prometheus-client and under its usual names."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open

_EOF = b"# EOF\n"


class Itself:
    """Processor time, memory and scrapes of the exporter."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._scrapes = Counter(
            "carme_exporter_scrapes",
            "Answers given, by status.",
            ("status",),
            registry=self._registry,
        )
        # Read at the scrape and not at a collection, so that Prometheus can compare the clocks.
        clock = Gauge("carme_exporter_time_seconds", "The node's clock.", registry=self._registry)
        clock.set_function(time.time)

    def count(self, status: int) -> None:
        """One more answer."""
        self._scrapes.labels(str(status)).inc()

    def append_to(self, body: bytes, openmetrics: bool) -> bytes:
        """`body` with these metrics at its end."""
        if openmetrics:
            return body.removesuffix(_EOF) + bytes(generate_open(self._registry))  # type: ignore[no-untyped-call]
        return body + bytes(generate_latest(self._registry))
