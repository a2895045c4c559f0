"""`create_app(config)`: the application with its API, its pages and its own metrics."""

from __future__ import annotations

import hmac
import json
import os
import time
from functools import cache

from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import RequestEntityTooLarge

from carme.config import Config, load
from carme.errors import CarmeError
from carme.service import pages, problems
from carme.service.api import calibrations, catalogue, cluster, jobs, pareto, predictions
from carme.service.context import current_context, make_context
from carme.service.endpoints import Api
from carme.service.hub_client import PREFIX
from carme.service.outcomes import CoverageMetrics
from carme.service.prediction_metrics import PredictionMetrics

API = f"{PREFIX}/api/v1"
_UPLOAD = f"{API}/workloads/onnx"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def make_api() -> Api:
    """Every endpoint."""
    api = Api()
    for module in (predictions, pareto, cluster, jobs, catalogue, calibrations):
        module.register(api)
    return api


def create_app(config: Config | None = None, token: str | None = None) -> Flask:
    """The application. `token` is the service's own at the hub (JUPYTERHUB_API_TOKEN)."""
    config = config or load()
    app = Flask("carme.service", static_folder="static", static_url_path=f"{PREFIX}/static")
    app.config["CARME"] = config
    own = os.environ.get("JUPYTERHUB_API_TOKEN", "") if token is None else token
    app.extensions["carme"] = make_context(config, own)
    api = make_api()
    app.register_blueprint(api.blueprint(API))
    app.register_blueprint(pages.blueprint(api))
    problems.install(app)
    _guard(app, config)
    _health(app)
    _metrics(app)

    document = cache(lambda: json.dumps(api.document(API)))

    @app.get(f"{API}/openapi.json")
    def openapi() -> Response:
        return Response(document(), mimetype="application/json")

    return app


def _guard(app: Flask, config: Config) -> None:
    """Sizes before, headers after every request."""

    @app.before_request
    def check_size() -> None:
        service = config.service
        most = service.most_onnx_bytes if request.path == _UPLOAD else service.most_body_bytes
        request.max_content_length = most
        if (request.content_length or 0) > most:
            raise RequestEntityTooLarge(f"the body is larger than {most:,} bytes")

    @app.after_request
    def secure(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.path.startswith(f"{PREFIX}/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response


def _health(app: Flask) -> None:
    @app.get(f"{PREFIX}/healthz")
    def healthz() -> Response:
        """Well if it answers and its database does; the others may come and go."""
        context = current_context()
        health = {"service": "ok", "database": "ok", "slurm view": "ok"}
        try:
            context.store.check()
        except SQLAlchemyError as error:
            health["database"] = str(error).splitlines()[0][:200]
        try:
            context.cluster.snapshot()
        except CarmeError as error:
            health["slurm view"] = error.message
        status = 200 if health["database"] == "ok" else 503
        return Response(json.dumps(health), status, mimetype="application/json")


def _metrics(app: Flask) -> None:
    """Requests and their durations, for Prometheus, which has its own token."""
    registry = CollectorRegistry()
    labels = ("endpoint", "method", "status")
    requests = Counter(
        "carme_service_requests_total", "Requests answered.", labels, registry=registry
    )
    seconds = Histogram(
        "carme_service_request_seconds", "Time to answer.", ("endpoint",), registry=registry,
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    )  # fmt: skip
    for collector in (CoverageMetrics, PredictionMetrics):
        registry.register(collector(app.extensions["carme"].store))
    prometheus_token = os.environ.get("CARME_PROMETHEUS_TOKEN", "")

    @app.before_request
    def begin() -> None:
        g.begin = time.perf_counter()

    @app.after_request
    def count(response: Response) -> Response:
        endpoint = request.endpoint or "unknown"
        requests.labels(endpoint, request.method, str(response.status_code)).inc()
        if "begin" in g:
            seconds.labels(endpoint).observe(time.perf_counter() - g.begin)
        return response

    @app.get(f"{PREFIX}/metrics")
    def metrics() -> Response:
        _, _, token = request.headers.get("Authorization", "").partition(" ")
        if not prometheus_token or not hmac.compare_digest(
            token.strip().encode(), prometheus_token.encode()
        ):
            raise problems.Refused(401, "the metrics are for Prometheus", "send its token")
        return Response(generate_latest(registry), mimetype="text/plain; version=0.0.4")
