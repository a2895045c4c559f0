"""The HTTP server of `/metrics`: it serves the last collection, so a scrape never waits for one."""

import base64
import binascii
import gzip
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, cast

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open

from carme.system.connections import ConnectionPhase, ConnectionTable, TrackedConnection
from carme.system.guess_limits import TooManyGuessesError
from carme.system.network_peers import peer_name
from carme_monitoring.metrics import Metric, Samples
from carme_monitoring.render import OPENMETRICS, TEXT, Renderer
from carme_monitoring.series_limit import SeriesLimit
from carme_monitoring.webconfig import Users, WebConfig, tls_context

_EOF = b"# EOF\n"


class ProcessMetrics:
    """Processor time, memory and scrapes of the exporter."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._scrapes = Counter(
            "carme_exporter_scrapes",
            "Scrapes served, by HTTP status.",
            ("status",),
            registry=self._registry,
        )

    def count(self, status: int) -> None:
        """Count one answer."""
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


log = logging.getLogger(__name__)
_MAX_CONNECTIONS = 64
_MAX_THREADS = 4 * _MAX_CONNECTIONS
"""A closed connection's thread may still check a password."""
_MAX_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 10
_IDLE_SECONDS = 75
"""Between two requests of a client with a valid password; Prometheus' interval is shorter."""
_ANSWER_SECONDS = 30
_HOME = b"""<!doctype html><meta charset="utf-8"><title>Carme exporter</title>
<h1>Carme exporter</h1><p><a href="/metrics">/metrics</a></p>\n"""


class MetricsPage:
    """The last answer: as text or OpenMetrics, plain or compressed; each form is made once."""

    def __init__(self, table: tuple[Metric, ...], limit: int) -> None:
        self._series_limit, self._renderer = SeriesLimit(limit, table), Renderer(table)
        self.process_metrics = ProcessMetrics()
        self._lock = threading.Lock()
        self.samples = Samples()
        self._forms: dict[tuple[bool, bool], bytes] = {}

    def publish(self, samples: Samples, add: Callable[[Samples], None] | None = None) -> None:
        """Replace the answer; the plain form is made right away, in the caller's time.

        `add` puts in further names for what is left after the limit was applied.
        """
        capped = self._series_limit.apply(samples)
        if add:
            add(capped)
        capped.add("carme_exporter_series_limit", (), self._series_limit.limit)
        capped.add("carme_exporter_rolled_up_jobs", (), self._series_limit.rolled_jobs)
        capped.add("carme_exporter_rolled_up_total", (), self._series_limit.rolled_total)
        capped.add("carme_exporter_series", (), len(capped) + 1)
        with self._lock:
            self.samples = capped
            self._forms = {(False, False): self._render(openmetrics=False)}

    def get(self, openmetrics: bool = False, compressed: bool = False) -> bytes:
        """The answer; gzip at level 1, because the exporter must use little processor time."""
        end = clock(openmetrics)  # a gzip file may have several parts
        return self._body(openmetrics, compressed) + (gzip.compress(end, 1) if compressed else end)

    def _body(self, openmetrics: bool, compressed: bool) -> bytes:
        """All but the end, made once for each collection and form."""
        with self._lock:
            form = (openmetrics, compressed)
            if form not in self._forms:
                plain = self._forms.get((openmetrics, False))
                if plain is None:
                    plain = self._render(openmetrics)
                    self._forms[openmetrics, False] = plain
                if compressed:
                    self._forms[form] = gzip.compress(plain, 1, mtime=0)
            return self._forms[form]

    def _render(self, openmetrics: bool) -> bytes:
        body = self._renderer.render(self.samples, openmetrics)
        return self.process_metrics.append_to(body, openmetrics)


class _BoundedHead:
    """Reads lines of a request's head; `left` bytes of them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = _MAX_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(min(limit, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise LineTooLong("head of the request")
        return line

    def close(self) -> None:
        self._file.close()


class MetricsHandler(BaseHTTPRequestHandler):
    """GET and HEAD of `/metrics`, `/` and `/-/healthy`."""

    server: "MetricsServer"
    protocol_version = "HTTP/1.1"
    server_version = "carme-exporter"
    sys_version = ""
    disable_nagle_algorithm = True
    tracked: TrackedConnection

    def setup(self) -> None:
        super().setup()
        self.tracked = self.server.tracked(self.request)
        self._head = _BoundedHead(cast(BinaryIO, self.rfile))
        self.rfile = cast(Any, self._head)

    def handle_one_request(self) -> None:
        """Read one request and answer it, with limits for the size and the time of its head."""
        self._head.left = _MAX_HEAD_BYTES
        seconds = _IDLE_SECONDS if self.tracked.is_known else _HEAD_SECONDS
        self.server.table.enter(self.tracked, ConnectionPhase.REQUEST, seconds)
        super().handle_one_request()

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # nobody reads the body
        try:
            is_allowed = self._is_allowed()
        except TooManyGuessesError as error:
            self._send(429, b"Too many wrong passwords\n", "text/plain; charset=utf-8",
                       {"Retry-After": str(int(error.seconds) + 1)})  # fmt: skip
            return
        if not is_allowed:
            self._send(401, b"Unauthorized\n", "text/plain; charset=utf-8",
                       {"WWW-Authenticate": 'Basic realm="carme"'})  # fmt: skip
            return
        self.tracked.is_known = True
        self.server.table.enter(self.tracked, ConnectionPhase.WORK)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send_metrics()
        elif path == "/-/healthy":
            self._send(200, b"ok\n", "text/plain; charset=utf-8")
        elif path == "/":
            self._send(200, _HOME, "text/html; charset=utf-8")
        else:
            self._send(404, b"Not Found\n", "text/plain; charset=utf-8")

    do_HEAD = do_GET

    def _send_metrics(self) -> None:
        is_open = "application/openmetrics-text" in self.headers.get("Accept", "")
        is_packed = "gzip" in self.headers.get("Accept-Encoding", "")
        headers = {"Vary": "Accept, Accept-Encoding"}
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        body = self.server.page.get(is_open, is_packed)
        self._send(200, body, OPENMETRICS if is_open else TEXT, headers)

    def _is_allowed(self) -> bool:
        if self.server.users is None:
            return True
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            text = base64.b64decode(token.strip(), validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            return False
        user, separator, password = text.partition(":")
        return bool(separator) and self.server.users.is_right(user, password, self.tracked.peer)

    def _send(
        self, code: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.server.page.process_metrics.count(code)
        self.server.table.enter(self.tracked, ConnectionPhase.ANSWER, _ANSWER_SECONDS)
        self.send_response(code)
        for name, value in {**self.server.headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class MetricsServer(ThreadingHTTPServer):
    """The HTTP server; credentials and TLS by `web`, none without it."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(self, address: str, port: int, page: MetricsPage, web: WebConfig | None) -> None:
        if ":" in address:
            self.address_family = socket.AF_INET6
        self.page = page
        self.users = Users(web.basic_auth_users) if web and web.basic_auth_users else None
        self.headers = dict(web.http_server_config.headers) if web else {}
        self.table = ConnectionTable(_MAX_CONNECTIONS)
        self._tracked: dict[Any, TrackedConnection] = {}
        self._thread_slots = threading.BoundedSemaphore(_MAX_THREADS)
        super().__init__((address, port), MetricsHandler)
        if web and web.tls_server_config:
            # The handshake happens in the connection's thread: a silent client blocks no other.
            self.socket = tls_context(web.tls_server_config).wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def tracked(self, request: Any) -> TrackedConnection:
        """The entry of a connection in the table."""
        return self._tracked[request]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection; if there are too many, another one ends."""
        tracked = self.table.add(peer_name(request), lambda: _end(request), _HEAD_SECONDS)
        if tracked is None or not self._thread_slots.acquire(blocking=False):
            if tracked:
                self.table.remove(tracked)
            self.shutdown_request(request)
            return
        self._tracked[request] = tracked
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no more threads
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        """Give back what a connection occupies."""
        self.table.remove(self._tracked.pop(request))
        self._thread_slots.release()

    def service_actions(self) -> None:
        """End connections whose time is over; called about twice a second."""
        self.table.close_expired()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log a client that disconnects or does not speak TLS, for debugging only."""
        log.debug("connection from %s", client_address, exc_info=True)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handle the requests of one connection."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)


def _end(connection: socket.socket) -> None:
    """End a connection that another thread uses: its reads and writes fail at once."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of TLS, too: without its state
