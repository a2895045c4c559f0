"""The exporter as a process: collects in the background, serves, and listens to the hook."""

import contextlib
import json
import logging
import os
import pwd
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from carme.errors import ConfigError
from carme.node import hook_interface
from carme.system.users import peer_uid
from carme_monitoring import top_rows
from carme_monitoring.pipeline import NodePipeline, Pipeline
from carme_monitoring.server import MetricsPage, MetricsServer
from carme_monitoring.webconfig import WebConfig

log = logging.getLogger(__name__)
LISTENER = "50-exporter"
TOP_FOLDER = "top"
"""The folder of the sockets that `carme top` reads, below the run folder."""


class ExporterProcess:
    """Runs until SIGTERM or SIGINT."""

    def __init__(
        self,
        pipeline: Pipeline,
        web: WebConfig | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pipeline, self.config, self._now = pipeline, pipeline.context.config, now
        self._node = pipeline if isinstance(pipeline, NodePipeline) else None
        self.page = MetricsPage(pipeline.table, self.config.series_limit)
        self._stop = threading.Event()
        self._logged: dict[str, str] = {}
        try:
            self.server = MetricsServer(self.config.listen, self.config.port, self.page, web)
        except OSError as error:
            where = f"{self.config.listen}:{self.config.port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error

    def run(self) -> None:
        """Collect, serve and listen."""
        sys.setswitchinterval(
            0.001
        )  # switch threads often: a scrape must not wait for a collection
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        self.collect()
        threads = [threading.Thread(target=self.server.serve_forever, daemon=True, name="http")]
        if self._node:
            threads.append(threading.Thread(target=self._listen, daemon=True, name="events"))
        for thread in threads:
            thread.start()
        log.info("serving on %s:%s", *self.server.server_address[:2])
        due = self._now()
        while not self._stop.is_set():
            due = max(due + self.config.interval_seconds, self._now())
            if not self._stop.wait(due - self._now()):
                self.collect()
        self.server.shutdown()
        self.server.server_close()
        if self._node:
            self._node.settle()

    def collect(self) -> None:
        """Collect and publish. A collector's failure is logged when it begins and when it ends."""
        self.page.publish(self.pipeline.collect(), self.pipeline.add_profiles)
        errors = self.pipeline.guards.errors()
        for name in errors.keys() | self._logged.keys():
            if name in errors and name not in self._logged:
                log.warning("collector %s: %s", name, errors[name])
            elif name not in errors:
                log.info("collector %s works again", name)
        self._logged = errors

    def handle(self, request: dict[str, object]) -> dict[str, object]:
        """Handle the hook's event: charge up to this moment, then start or end the job."""
        node, jobid = self._node, request.get("jobid")
        is_ours = node is not None and request.get("node") == node.context.node
        if node is None or not is_ours or not isinstance(jobid, int):
            return {"error": "not for this exporter"}
        return {"ok": True, "reading": node.settle(jobid)}

    def _listen(self) -> None:
        node = self._node
        if node is None:
            return
        sockets: list[socket.socket] = []
        try:
            events = hook_interface.listener(self.config.run, f"{LISTENER}.{node.context.node}")
            sockets.append(events)
            top_server = _top_socket(self.config.run / TOP_FOLDER / f"{node.context.node}.sock")
            sockets.append(top_server)
        except OSError as error:
            log.error("no socket in %s: %s; jobs are then seen only at collections",
                      self.config.run, error)  # fmt: skip
            if not sockets:
                return
        while not self._stop.is_set():
            ready, _, _ = select.select(sockets, [], [], 1.0)
            for server in ready:
                if server is sockets[0]:
                    hook_interface.answer(server, self.handle)
                else:
                    self._answer_top(server, node)

    def _answer_top(self, server: socket.socket, node: NodePipeline) -> None:
        """Answer `carme top` with the jobs that the caller may see."""
        with contextlib.suppress(OSError), server.accept()[0] as client:
            client.settimeout(2)
            uid = peer_uid(client)
            name, jobs = node.context.node, list(node.accounting.state.table.jobs.values())
            rows = top_rows.job_rows(self.page.samples, name, jobs, time.time())
            if not self._sees_all(uid):
                rows = [row for row in rows if row["uid"] == uid]
            client.sendall(json.dumps({"node": name, "jobs": rows}).encode() + b"\n")

    def _sees_all(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        try:
            return pwd.getpwuid(uid).pw_name in self.config.readers
        except KeyError:
            return False


def _top_socket(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    server.bind(str(path))
    path.chmod(0o666)  # any user may connect; the answer depends on the peer's uid
    server.listen(16)
    return server
