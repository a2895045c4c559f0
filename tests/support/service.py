"""The service for tests: an application with a small hub and a small view, which tests can stop."""

import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from carme.config import Config
from carme.service.app import create_app
from carme.slurm.models import Node, Partition
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import NodeState

API = "/services/carme/api/v1"
OWN = "own-" + "t" * 32
TOKENS = {
    "token-ann": {"kind": "user", "name": "ann", "admin": False, "scopes": ["access:services"]},
    "token-ben": {"kind": "user", "name": "ben", "admin": False, "scopes": ["access:services"]},
    "token-ada": {"kind": "user", "name": "ada", "admin": True, "scopes": ["access:services"]},
    "token-narrow": {"kind": "user", "name": "ann", "admin": False, "scopes": ["read:users"]},
    "token-service": {"kind": "service", "name": "other", "scopes": ["access:services"]},
}


class SmallHub(BaseHTTPRequestHandler):
    """A hub that knows the tokens above, and returns one for the code `good`."""

    def do_GET(self):
        token = self.headers.get("Authorization", "").partition(" ")[2]
        model = TOKENS.get(token) if self.path == f"{self.server.base_url}hub/api/user" else None
        body = json.dumps(model or {"message": "no"}).encode()
        self.send_response(200 if model else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        form = dict(parse_qsl(self.rfile.read(size).decode()))
        self.server.login_forms.append(form)
        token_path = f"{self.server.base_url}hub/api/oauth2/token"
        good = self.path == token_path and form["code"] == "good"
        body = json.dumps({"access_token": "token-ann"} if good else {"error": "invalid_grant"})
        self.send_response(200 if good else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def gpu_nodes(*kinds):
    """An idle node with four GPUs of each kind."""
    return tuple(
        Node(name=f"gpu{i}", state=NodeState.IDLE, partitions=("gpu",), cpus=8,
             memory_bytes=8 * 2**30, gpus={kind: 4})
        for i, kind in enumerate(kinds)
    )  # fmt: skip


class SmallView:
    """A view that serves the snapshot of one cluster."""

    def __init__(self, path):
        self.asked = []
        """Every address, the oldest first."""
        cpu = Node(name="cpu1", state=NodeState.IDLE, partitions=("cpu",), cpus=8,
                   memory_bytes=8 * 2**30)  # fmt: skip
        self.snapshot = Snapshot(
            taken_at=time.time(),
            nodes=(*gpu_nodes("virtual-a100", "virtual-t4"), cpu),
            partitions=(
                Partition(name="gpu", default=True, nodes=("gpu0", "gpu1"), max_seconds=28800),
                Partition(name="cpu", nodes=("cpu1",)),
            ),
        )
        self.jobs = {}
        """By job id: a job that was submitted after the snapshot."""
        self.reports = {}
        """By job id: what a report holds."""
        self.listed = None
        """What the list of reports holds."""
        self.rights = {}
        """By user: accounts and QoS; other users have none, and no limits."""
        self.rights_seconds = 0
        """Delay before it answers with accounts and QoS."""
        self.expected_start_seconds = None
        """Delay before it answers that the expected start is not known; None: no delay."""
        self.missing = False
        """Whether other requests get 404; else 503."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                path = connection.recv(65536).split(b" ")[1].decode()
                self.asked.append(path)
                report = self.reports.get(path.removeprefix("/reports/"))
                job = self.jobs.get(path.removeprefix("/jobs/"))
                user = path.partition("/rights?user=")[2]
                rights = self.rights.get(user, UserRights(user=user)) if user else None
                if rights and self.rights_seconds:
                    time.sleep(self.rights_seconds)
                if path.startswith("/expected-start") and self.expected_start_seconds:
                    time.sleep(self.expected_start_seconds)
                if path.startswith("/snapshot"):
                    self._send(connection, "200 OK", self.snapshot.model_dump_json())
                elif rights:
                    self._send(connection, "200 OK", rights.model_dump_json())
                elif job:
                    self._send(connection, "200 OK", job.model_dump_json())
                elif report:
                    self._send(connection, "200 OK", report.model_dump_json())
                elif self.listed and path.startswith("/reports?"):
                    self._send(connection, "200 OK", self.listed.model_dump_json())
                elif self.missing:
                    error = {"error": {"reason": "missing", "message": "none", "hint": ""}}
                    self._send(connection, "404 Not Found", json.dumps(error))
                else:
                    error = {"error": {"reason": "unavailable", "message": "not here", "hint": ""}}
                    self._send(connection, "503 Unavailable", json.dumps(error))

    @staticmethod
    def _send(connection, status, text):
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with suppress(BrokenPipeError):  # the client did not wait
            connection.sendall(head.encode() + body)

    def close(self):
        self._socket.close()


class Service:
    """The application with everything beside it, for a hub at `hub_url`."""

    def __init__(self, folder, hub_url="http://127.0.0.1:8000", **settings):
        self.hub = ThreadingHTTPServer(("127.0.0.1", 0), SmallHub)
        self.hub.login_forms = []
        threading.Thread(target=self.hub.serve_forever, args=(0.02,), daemon=True).start()
        self.view = SmallView(folder / "view.sock")
        self.config = Config.model_validate(
            {
                "hub": {"url": hub_url, "api_port": self.hub.server_port},
                "view": {"socket": folder / "view.sock"},
                "service": {
                    "database": f"sqlite:///{folder}/service.sqlite", "processes": 1, **settings,
                },
            }
        )  # fmt: skip
        self.hub.base_url = self.config.hub.base_url
        self.app = create_app(self.config, token=OWN)
        self.context = self.app.extensions["carme"]
        self.context.store.migrate()
        self.client = self.app.test_client()

    def ask(self, method, path, who="ann", body=None, **more):
        headers = {"Authorization": f"token token-{who}"} if who else {}
        if body is not None:
            more["json"] = body
        return self.client.open(API + path, method=method, headers=headers, **more)

    def stop_hub(self):
        self.hub.shutdown()
        self.hub.server_close()

    def close(self):
        self.context.cluster.close()
        self.context.tasks.close()
        self.context.sandboxes.close()
        self.context.store.engine.dispose()
        self.view.close()
        self.stop_hub()
