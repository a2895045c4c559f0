"""A session's address leads to that session, also when another program has taken its port."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import requests

from support.cluster import wait_for
from support.exporter import Exporter
from support.hub import User

pytestmark = pytest.mark.cluster

TAKE_PORT = """
import socket, ssl, sys, threading, time
port, pem, out = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "ab", 0)
context = None
if pem:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
while True:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
        break
    except OSError:
        server.close()
        time.sleep(0.001)
server.listen(64)
out.write(b"listening\\n")

def serve(client):
    try:
        if context:
            client = context.wrap_socket(client, server_side=True)
        out.write(b"got " + client.recv(65536) + b"\\n")
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nstolen")
    except OSError as error:
        out.write(b"refused " + str(error).encode() + b"\\n")

while True:
    client, _ = server.accept()
    out.write(b"connected\\n")
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"""
"""A program of another user: takes a port as soon as it is free, and notes what it gets."""


@pytest.fixture
def two(cluster):
    users = [User.fresh(cluster, name) for name in cluster.users[:2]]
    for user in users:
        user.start(partition="cpu", gpus=0, cpus=1, memory_gb=1, hours=0.5)
    yield users
    for user in users:
        user.stop()


@pytest.fixture
def log():
    """A file that every user may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="carme-thief-") as name:
        Path(name).chmod(0o755)
        file = Path(name) / "log"
        file.touch()
        file.chmod(0o666)
        yield file


def listening_port(cluster, user):
    """The port on which the user's session listens, as any user of its host can find it."""
    uid = cluster.run(["id", "-u", user.name]).stdout.strip()
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    fields = [line.split() for line in lines]
    ports = {int(f[1].split(":")[1], 16) for f in fields if f[3] == "0A" and f[7] == uid}
    served = []
    for port in ports:
        try:
            address = f"https://127.0.0.1:{port}{cluster.config.hub.base_url}user/{user.name}/api"
            if requests.get(address, timeout=5, verify=False).ok:
                served.append(port)
        except requests.RequestException:
            continue
    [port] = served
    return port


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("certificate", ["of their own session", "none"])
def test_whoever_takes_the_port_gets_no_request(cluster, two, log, certificate):
    ann, ben = two
    assert ann.server("GET", "/api/kernels").status_code == 200
    port = listening_port(cluster, ann)
    pem = f"/home/{ben.name}/.carme/sessions/default/server.pem"
    as_ben = ["setpriv", f"--reuid={ben.name}", "--clear-groups"]
    argv = [str(port), pem if certificate != "none" else "", str(log)]
    hub, thief = cluster.pid("hub"), None
    try:
        thief = subprocess.Popen([*as_ben, "/usr/bin/python3", "-c", TAKE_PORT, *argv])
        # The hub stands still, so its route outlives the job for as long as this test needs.
        os.kill(hub, signal.SIGSTOP)
        [job] = cluster.jobs(ann.name)
        assert cluster.run_as(ann.name, ["scancel", job["id"]]).returncode == 0
        wait_for(lambda: b"listening" in log.read_bytes(), 40, "the port changes hands")

        def is_tried():
            with pytest.raises(requests.RequestException):
                # The proxy asks the hub for its error page, and the hub stands still.
                ann.web.get(f"{ann.session_url}/api/kernels", timeout=1)
            return b"refused" in log.read_bytes() or b"got" in log.read_bytes()

        wait_for(is_tried, 20, "the proxy connects to the port")
        assert b"connected" in log.read_bytes()
    finally:
        os.kill(hub, signal.SIGCONT)
        if thief:
            thief.kill()
            thief.wait(10)
    text = log.read_bytes()
    assert b"HTTP/1.1" not in text
    assert b"ookie" not in text
    wait_for(lambda: not ann.state(), 60, "the hub knows that the session is over")
    assert ben.server("GET", "/api/kernels").status_code == 200


def test_the_epilog_tells_the_hub(cluster, two):
    ann = two[0]
    [job] = cluster.jobs(ann.name)
    node = cluster.run(["squeue", "-h", "-j", job["id"], "-o", "%N"]).stdout.strip()
    exporter = Exporter(cluster, node)
    records = Path(exporter.run) / "jobs"
    path = records / f"{node}.{job['id']}.0.json"
    assert json.loads(path.read_text())["submission"]

    def posts():  # also in a log that was rotated
        logs = [path.read_bytes() for path in (cluster.dir / "log").glob("hub.log*")]
        return sum(log.count(b"204 POST /hub/api/carme/ended") for log in logs)

    before = posts()
    assert cluster.run_as(ann.name, ["scancel", job["id"]]).returncode == 0
    wait_for(lambda: json.loads(path.read_text())["end"], 40, "the epilog has run")
    wait_for(lambda: not ann.state(), 60, "the hub knows that the session is over")
    # The hub's own polls would find it out 10 to 40 seconds later.
    wait_for(lambda: posts() > before, 20, "the request is in the hub's log")


def test_a_made_up_end_changes_nothing(cluster, two):
    ann = two[0]
    api = f"http://{cluster.config.hub.api_base}/carme/ended"
    for number in ("", "0" * 32, "x" * 10_000):
        answer = requests.post(api, headers={"Authorization": f"session {number}"}, timeout=20)
        assert answer.status_code == 204, answer.text
    [job] = cluster.jobs(ann.name)
    comment = cluster.run(["squeue", "-h", "-j", job["id"], "-o", "%k"]).stdout
    number = comment.partition("carme-submission=")[2].strip()
    answer = requests.post(api, headers={"Authorization": f"session {number}"}, timeout=20)
    assert answer.status_code == 204
    end = time.monotonic() + 5  # the hub looks at the job after it has answered
    while time.monotonic() < end:
        assert ann.state()["ready"]
        time.sleep(0.5)
    assert ann.server("GET", "/api/kernels").status_code == 200
