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
from carme.refusal_metrics import RefusalMetrics
from carme.service import problems
from carme.service.api import (
    calibrations,
    cluster,
    hardware,
    jobs,
    pareto,
    predictions,
    workloads,
)
from carme.service.context import ServiceContext
from carme.service.endpoints import API_PATH, Api
from carme.service.outcomes import CoverageMetrics, PredictionMetrics
from carme.service.pages import pages

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
    modules = (predictions, pareto, cluster, jobs, workloads, hardware, calibrations)
    return Api(*(module.api for module in modules))


def create_app(config: Config | None = None, token: str | None = None) -> Flask:
    """The application, below the path of the hub's address. `token` is the service's own at the
    hub (JUPYTERHUB_API_TOKEN)."""
    config = config or load()
    if token is None:
        token = os.environ.get("JUPYTERHUB_API_TOKEN", "")
    context = ServiceContext(config, token)
    prefix = context.hub.prefix
    app = Flask("carme.service", static_folder="static", static_url_path=f"{prefix}/static")
    app.extensions["carme"] = context
    api, address = make_api(), prefix + API_PATH
    app.extensions["carme_api"] = api
    app.register_blueprint(api.blueprint(), url_prefix=address)
    app.register_blueprint(pages, url_prefix=prefix)
    problems.install(app)
    _guard(app, config, prefix)
    _metrics(app, prefix)
    document = cache(lambda: json.dumps(api.document(address)))

    @app.get(f"{address}/openapi.json")
    def openapi() -> Response:
        return Response(document(), mimetype="application/json")

    @app.get(f"{prefix}/healthz")
    def healthz() -> Response:
        """200 if the service and its database answer; the view may be away."""
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

    return app


def _guard(app: Flask, config: Config, prefix: str) -> None:
    """Check sizes before, and set headers after every request."""

    @app.before_request
    def check_size() -> None:
        is_file = request.path == f"{prefix}{API_PATH}/workloads/onnx"
        most = config.service.most_onnx_bytes if is_file else config.service.most_body_bytes
        request.max_content_length = most
        if (request.content_length or 0) > most:
            raise RequestEntityTooLarge(f"the body is larger than {most:,} bytes")

    @app.after_request
    def secure(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.path.startswith(f"{prefix}/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response


def _metrics(app: Flask, prefix: str) -> None:
    """Count and time requests; serve the metrics to Prometheus, which has its own token."""
    registry = CollectorRegistry()
    context: ServiceContext = app.extensions["carme"]
    labels = ("endpoint", "method", "status")
    requests = Counter(
        "carme_service_requests_total", "Requests answered.", labels, registry=registry
    )
    seconds = Histogram(
        "carme_service_request_seconds", "Time to answer.", ("endpoint",), registry=registry,
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    )  # fmt: skip
    for collector in (CoverageMetrics, PredictionMetrics):
        registry.register(collector(context.store))
    registry.register(RefusalMetrics("carme_service_refusals", *context.limits))
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

    @app.get(f"{prefix}/metrics")
    def metrics() -> Response:
        _, _, token = request.headers.get("Authorization", "").partition(" ")
        if not prometheus_token or not hmac.compare_digest(
            token.strip().encode(), prometheus_token.encode()
        ):
            raise problems.HttpProblem(401, "the metrics are for Prometheus", "send its token")
        return Response(generate_latest(registry), mimetype="text/plain; version=0.0.4")
