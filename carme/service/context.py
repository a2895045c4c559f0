"""The state that all requests of an application share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from cachetools import TTLCache, cachedmethod
from flask import current_app

from carme.config import Config
from carme.predict.coefficients import Calibration
from carme.predict.prediction import Rates
from carme.service.hub_client import BrowserSessions, HubClient
from carme.service.rate_limits import ConcurrencyLimiter, RateLimiter
from carme.service.store import CalibrationRow, Store
from carme.service.tasks import TaskPool
from carme.service.uploads import SandboxProcess
from carme.view.client import SnapshotSubscription, ViewClient

_VIEW_TIMEOUT_SECONDS = 1.5
_REPORT_SECONDS = 10.0
"""Longer than a request waits: the view caches the answer for the next request."""
_CALIBRATION_SECONDS = 10.0
_MAX_CALIBRATIONS = 10_000
_MOST_STREAMS = 6
"""Each stream holds one of the server's threads for minutes."""
_MOST_STREAMS_OF_ONE = 2


@dataclass
class ServiceContext:
    """Everything that is shared between requests."""

    config: Config
    hub: HubClient
    sessions: BrowserSessions
    request_rates: RateLimiter
    store: Store
    tasks: TaskPool
    cluster: SnapshotSubscription
    sandbox: SandboxProcess = field(default_factory=SandboxProcess)
    streams: ConcurrencyLimiter = field(
        default_factory=lambda: ConcurrencyLimiter(_MOST_STREAMS, _MOST_STREAMS_OF_ONE)
    )
    _calibrations: TTLCache[Any, Calibration | None] = field(
        default_factory=lambda: TTLCache(_MAX_CALIBRATIONS, _CALIBRATION_SECONDS)
    )
    _calibrations_lock: threading.Lock = field(default_factory=threading.Lock)

    @cachedmethod(lambda self: self._calibrations, lock=lambda self: self._calibrations_lock)
    def newest_calibration(self, user: str, workload: str, gpu: str) -> Calibration | None:
        """The user's newest calibration of this workload and GPU, cached for some seconds."""
        rows = self.store.page(CalibrationRow, user, 1, None, workload=workload, gpu=gpu)
        return rows[0].calibration if rows else None

    def forget_calibrations(self) -> None:
        """Read calibrations again: one was added or deleted."""
        with self._calibrations_lock:
            self._calibrations.clear()

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
    """The context for a configuration; connects to nothing yet."""
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
    """The context of the application that handles this request."""
    context: ServiceContext = current_app.extensions["carme"]
    return context
