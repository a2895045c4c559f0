"""The state that all requests of an application share."""

from __future__ import annotations

import threading
from typing import Any

from cachetools import TTLCache, cachedmethod
from flask import current_app

from carme.config import Config
from carme.predict.coefficients import Calibration
from carme.predict.prediction import Rates
from carme.service.hub_client import BrowserSessions, HubClient
from carme.service.rate_limits import ConcurrencyLimiter, RateLimiter
from carme.service.sandbox_process import SandboxProcess
from carme.service.store import CalibrationRow, Store
from carme.service.tasks import TaskPool
from carme.view.client import SnapshotSubscription, ViewClient

_VIEW_TIMEOUT_SECONDS = 1.5
_REPORT_SECONDS = 10.0
"""Longer than a request waits: a late report is cached by the view for the next request."""
_CALIBRATION_SECONDS = 10.0
_MAX_CALIBRATIONS = 10_000
_MAX_STREAMS = 6
"""Each stream holds one of the server's threads for minutes."""
_MAX_STREAMS_PER_USER = 2


class ServiceContext:
    """The objects that all requests share. Making a context connects to nothing. `token` is the
    service's own token at the hub."""

    def __init__(self, config: Config, token: str) -> None:
        service = config.service
        view = ViewClient(config.view.socket, _VIEW_TIMEOUT_SECONDS, _REPORT_SECONDS)
        self.config = config
        self.hub = HubClient(config, token)
        self.sessions = BrowserSessions()
        self.request_rates = RateLimiter(service.requests_per_minute)
        self.store = Store(service.database)
        self.tasks = TaskPool(service.processes)
        self.cluster = SnapshotSubscription(view)
        self.sandbox = SandboxProcess()
        self.streams = ConcurrencyLimiter(_MAX_STREAMS, _MAX_STREAMS_PER_USER)
        self._calibrations: TTLCache[Any, Calibration | None] = TTLCache(
            _MAX_CALIBRATIONS, _CALIBRATION_SECONDS
        )
        self._calibrations_lock = threading.Lock()

    @cachedmethod(lambda self: self._calibrations, lock=lambda self: self._calibrations_lock)
    def newest_calibration(self, user: str, workload: str, gpu: str) -> Calibration | None:
        """The user's newest calibration of this workload and GPU, cached for some seconds."""
        row = self.store.newest(CalibrationRow, user, workload=workload, gpu=gpu)
        return row.calibration if row else None

    def forget_calibrations(self) -> None:
        """Clear the cache, after a calibration was added or deleted."""
        with self._calibrations_lock:
            self._calibrations.clear()

    @property
    def rates(self) -> Rates:
        """Emissions and price of a kilowatt hour at this site."""
        exporter, service = self.config.exporter, self.config.service
        grams = exporter.emissions_grams_per_kwh
        return Rates(
            grams_co2_per_kwh=service.grams_co2_per_kwh if grams is None else grams,
            pue=service.pue,
            price_per_kwh=exporter.price_per_kwh,
            currency=exporter.currency,
        )


def current_context() -> ServiceContext:
    """The context of the application that handles this request."""
    context: ServiceContext = current_app.extensions["carme"]
    return context
