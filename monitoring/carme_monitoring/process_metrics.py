"""The exporter's own process, through prometheus-client and under its usual names."""

import time

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open

_EOF = b"# EOF\n"


class ProcessMetrics:
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

    def count(self, status: int) -> None:
        """One more answer."""
        self._scrapes.labels(str(status)).inc()

    def append_to(self, body: bytes, openmetrics: bool) -> bytes:
        """`body` with these metrics at its end, and without an end mark."""
        if openmetrics:
            process = bytes(generate_open(self._registry))  # type: ignore[no-untyped-call]
            return body.removesuffix(_EOF) + process.removesuffix(_EOF)
        return body + bytes(generate_latest(self._registry))


def clock(openmetrics: bool) -> bytes:
    """The end of an answer: the time right now, so that Prometheus can compare the clocks."""
    text = (
        "# HELP carme_exporter_time_seconds The node's clock.\n"
        "# TYPE carme_exporter_time_seconds gauge\n"
        f"carme_exporter_time_seconds {time.time():.3f}\n"
    ).encode()
    return text + _EOF if openmetrics else text
