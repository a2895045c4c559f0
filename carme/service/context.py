"""The state that all requests of an application share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cachetools import TTLCache, cachedmethod
from flask import current_app

from carme.config import Config
from carme.fair_use import FairGate, RateLimiter
from carme.predict.coefficients import Calibration
from carme.predict.prediction import Rates
from carme.service.hub_client import BrowserSessions, HubClient
from carme.service.sandbox_process import SandboxPool
from carme.service.store import CalibrationRow, Store
from carme.service.tasks import TaskPool
from carme.view.client import SnapshotSubscription, ViewClient

_VIEW_TIMEOUT_SECONDS = 1.5
_REPORT_SECONDS = 10.0
"""Longer than a request waits: a late report is cached by the view for the next request."""
_CALIBRATION_SECONDS = 10.0
_MAX_CALIBRATIONS = 10_000
_MAX_REQUESTS = 1000
"""Of all users: the server has its own limit."""
_CALCULATIONS = 4
"""At once in this process, which computes on one core."""
_CALCULATIONS_PER_USER = 2
_MAX_STREAMS = 6
"""Each stream holds one of the server's threads for minutes."""
_MAX_STREAMS_PER_USER = 2
_JOB_QUESTIONS = 8
_JOB_QUESTIONS_PER_USER = 2
"""A question holds its place for seconds if Slurm's accounting or Prometheus is slow."""
_MAX_UPLOADS, _MAX_UPLOADS_PER_USER = 8, 2
"""Files that are being received or read."""
_MAX_BODIES_PER_USER = 16
"""Other bodies that are being received, or wait to be read: each takes up to a megabyte."""
_USER_THREADS, _THREADS_PER_USER = 16, 8
_STRANGER_THREADS, _THREADS_PER_PEER = 8, 4
"""For requests whose token or session the hub has to check, or that have none: so strangers, and a
hub that does not answer, delay nobody whose token was checked a moment ago."""
_WAITING_PER_USER, _WAITING_PER_PEER = 16, 64
SERVER_THREADS = _USER_THREADS + _STRANGER_THREADS + _MAX_STREAMS
"""Enough for everything that the limits let pass."""


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
        self.tasks = TaskPool(service.processes, service.tasks_per_user)
        self.cluster = SnapshotSubscription(view)
        self.sandboxes = SandboxPool()
        most = service.requests_at_once
        self.requests = FairGate("requests", _MAX_REQUESTS, most, 0)
        self.calculations = FairGate("calculations", _CALCULATIONS, _CALCULATIONS_PER_USER, most)
        self.streams = FairGate(
            "progress streams", _MAX_STREAMS, _MAX_STREAMS_PER_USER, 0,
            "GET the task every few seconds",
        )  # fmt: skip
        self.job_questions = FairGate(
            "questions about jobs", _JOB_QUESTIONS, _JOB_QUESTIONS_PER_USER, most
        )
        self.job_threads = ThreadPoolExecutor(_JOB_QUESTIONS, "jobs")
        self.uploads = FairGate("uploads", _MAX_UPLOADS, _MAX_UPLOADS_PER_USER, 0)
        self.bodies = FairGate("request bodies", _MAX_REQUESTS, _MAX_BODIES_PER_USER, 0)
        self.user_turns = FairGate(
            "requests", _USER_THREADS, _THREADS_PER_USER, _WAITING_PER_USER,
            label="requests at the server",
        )  # fmt: skip
        self.stranger_turns = FairGate(
            "requests without a checked token",
            _STRANGER_THREADS, _THREADS_PER_PEER, _WAITING_PER_PEER,
        )  # fmt: skip
        self._calibrations: TTLCache[Any, Calibration | None] = TTLCache(
            _MAX_CALIBRATIONS, _CALIBRATION_SECONDS
        )
        self._calibrations_lock = threading.Lock()

    @cachedmethod(lambda self: self._calibrations, lock=lambda self: self._calibrations_lock)
    def newest_calibration(self, user: str, workload: str, gpu: str) -> Calibration | None:
        """The user's newest calibration of this workload and GPU, cached for some seconds."""
        row = self.store.newest(CalibrationRow, user, workload=workload, gpu=gpu)
        return row.calibration if row else None

    @property
    def limits(self) -> tuple[FairGate | RateLimiter, ...]:
        """The limits per user, for the metrics."""
        return (
            self.request_rates,
            self.requests,
            self.calculations,
            self.tasks.calculations,
            self.tasks.running,
            self.streams,
            self.job_questions,
            self.sandboxes.gate,
            self.uploads,
            self.bodies,
            self.user_turns,
            self.stranger_turns,
        )

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
