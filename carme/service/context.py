"""What the endpoints work with, made once for an application."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from flask import current_app

from carme.config import Config
from carme.predict.prediction import Rates
from carme.service.browser_sessions import BrowserSessions
from carme.service.hub_client import HubClient
from carme.service.rate_limits import ConcurrencyLimiter, RateLimiter
from carme.service.sandbox_process import SandboxProcess
from carme.service.store import Store
from carme.service.tasks import TaskPool
from carme.view.client import SnapshotSubscription, ViewClient

_VIEW_TIMEOUT_SECONDS = 1.5
_REPORT_SECONDS = 10.0
"""Longer than anybody waits for it: the view keeps the answer for the next who asks."""
_KNOWLEDGE_SECONDS = 10.0
_MOST_KEPT = 10_000
_MOST_STREAMS = 6
"""Each holds one of the server's threads for minutes."""
_MOST_STREAMS_OF_ONE = 2


class TimedCache:
    """Values that are good for some seconds, or until they are cleared."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._values: dict[Any, tuple[float, Any]] = {}

    def get(self, key: Any) -> Any:
        """The value, or None when there is none that is young enough."""
        with self._lock:
            at, value = self._values.get(key, (float("-inf"), None))
        return value if time.monotonic() - at < self._seconds else None

    def put(self, key: Any, value: Any) -> None:
        """Keep it from now on."""
        with self._lock:
            if len(self._values) > _MOST_KEPT:
                self._values.clear()
            self._values[key] = (time.monotonic(), value)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()


@dataclass
class ServiceContext:
    """Everything that is shared between requests."""

    config: Config
    hub: HubClient
    sessions: BrowserSessions
    buckets: RateLimiter
    store: Store
    tasks: TaskPool
    cluster: SnapshotSubscription
    apart: SandboxProcess = field(default_factory=SandboxProcess)
    streams: ConcurrencyLimiter = field(
        default_factory=lambda: ConcurrencyLimiter(_MOST_STREAMS, _MOST_STREAMS_OF_ONE)
    )
    known: TimedCache = field(default_factory=lambda: TimedCache(_KNOWLEDGE_SECONDS))
    """The newest fit by (user, workload, GPU)."""

    @property
    def rates(self) -> Rates:
        """What a kilowatt hour emits and costs here."""
        exporter, service = self.config.exporter, self.config.service
        grams = exporter.emissions_grams_per_kwh
        return Rates(
            grams_co2_per_kwh=service.grams_co2_per_kwh if grams is None else grams,
            pue=service.pue,
            price_per_kwh=exporter.price_per_kwh,
            currency=exporter.currency,
        )


def make_context(config: Config, token: str) -> ServiceContext:
    """All of them for a configuration; nothing is asked of anybody yet."""
    service = config.service
    return ServiceContext(
        config,
        HubClient(config, token),
        BrowserSessions(),
        RateLimiter(service.requests_per_minute),
        Store(service.database),
        TaskPool(service.processes),
        SnapshotSubscription(
            ViewClient(config.view.socket, _VIEW_TIMEOUT_SECONDS, _REPORT_SECONDS)
        ),
    )


def current_context() -> ServiceContext:
    """Those of the application that answers this request."""
    found: ServiceContext = current_app.extensions["carme"]
    return found
