"""The launcher is run as in a container: as a program, with a real hub and a real server."""

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from importlib.resources import files
from pathlib import Path

import pytest

from carme_spawner.launcher import listener_uids
from support.cluster import wait_for

LAUNCHER = files("carme_spawner").joinpath("launcher.py").read_text()
SERVER = """
import http.server, os, socket, urllib.parse
url = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
handler = http.server.SimpleHTTPRequestHandler
server = http.server.HTTPServer
server.address_family = socket.AF_INET6 if ":" in url.hostname else socket.AF_INET
server((url.hostname, url.port), handler).handle_request()
"""


@pytest.fixture
def hub():
    """A hub that notes the requests that it gets."""
    with serve_hub("127.0.0.1") as server:
        yield server


@contextlib.contextmanager
def serve_hub(address):
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    class Server(http.server.HTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with Server((address, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        server.requests = requests
        yield server
        server.shutdown()
        thread.join()


def session(tmp_path, hub, command, start_seconds=60, hub_host="127.0.0.1"):
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    settings = {
        "environment": {"JUPYTERHUB_API_TOKEN": "secret"},
        "hub_api_url": f"http://{hub_host}:{hub.server_port}/hub/api",
        "base_url": "/user/ann/",
        "command": command,
        "start_seconds": start_seconds,
    }
    (tmp_path / "session.json").write_text(json.dumps(settings))
    return [sys.executable, str(tmp_path / "launcher.py")]


def reported_port(hub):
    wait_for(lambda: hub.requests, 20, "a report")
    [(_, _, body)] = hub.requests
    return body["port"]


def test_reports_the_port_that_its_server_has(tmp_path, hub):
    argv = session(tmp_path, hub, [sys.executable, "-c", SERVER])
    with subprocess.Popen(argv) as launcher:
        reported_port(hub)
        [(path, authorization, body)] = hub.requests
        assert path == "/hub/api/carme/port"
        assert authorization == "token secret"
        with socket.create_connection(("127.0.0.1", body["port"])) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert launcher.wait(10) == 0


def test_a_hub_that_is_reached_by_ipv6(tmp_path):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with serve_hub("::1") as hub:
        argv = session(tmp_path, hub, [sys.executable, "-c", SERVER], hub_host="[::1]")
        with subprocess.Popen(argv) as launcher:
            port = reported_port(hub)
            with socket.create_connection(("::1", port)) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert launcher.wait(10) == 0


def test_an_unknown_hub_is_named(tmp_path, hub):
    argv = session(tmp_path, hub, ["true"], hub_host="no-such-host.invalid")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no-such-host.invalid is unknown" in done.stderr


def test_everybody_who_listens_on_a_port_is_seen(tmp_path):
    table = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {address}:1F90 {rest}:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1
"""
    v4, v6 = tmp_path / "tcp", tmp_path / "tcp6"
    v4.write_text(table.format(address="0100007F", rest="00000000", state="0A", uid=1001))
    assert listener_uids(8080, (v4, v6)) == {1001}
    v6.write_text(table.format(address="0" * 32, rest="0" * 32, state="0A", uid=1002))
    assert listener_uids(8080, (v4, v6)) == {1001, 1002}
    assert listener_uids(8081, (v4, v6)) == set()
    v6.write_text(table.format(address="0" * 32, rest="0" * 32, state="01", uid=1002))
    assert listener_uids(8080, (v4, v6)) == {1001}, "a connection is no listener"


def test_a_server_that_ends_at_once_is_reported_with_its_exit_code(tmp_path, hub):
    argv = session(tmp_path, hub, [sys.executable, "-c", "raise SystemExit(7)"])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 7
    assert "exit code 7 before it listened" in done.stdout
    assert not hub.requests


def test_a_server_that_does_not_listen_in_time_is_ended(tmp_path, hub):
    argv = session(tmp_path, hub, ["sleep", "60"], start_seconds=0.2)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode
    assert "before it listened" in done.stdout


def test_an_image_without_the_server_says_what_to_install(tmp_path, hub):
    done = subprocess.run(
        session(tmp_path, hub, ["no-such-server"]), capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1
    assert "install the Python packages jupyterhub and jupyterlab" in done.stdout


def test_the_token_is_on_no_command_line(tmp_path, hub):
    argv = session(tmp_path, hub, [sys.executable, "-c", "import time; time.sleep(20)"])
    with subprocess.Popen(argv) as launcher:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        launcher.terminate()
    assert "secret" not in listed


def test_another_port_is_chosen_if_the_first_is_taken(tmp_path, hub):
    """The server finds its port taken and ends; the launcher chooses another."""
    thief = """
import os, socket, sys, time, urllib.parse
port = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"]).port
mark = os.path.join(os.environ["CARME_JUPYTER"], "mark")
if not os.path.exists(mark):
    open(mark, "w").close()
    holder = socket.socket()
    holder.bind(("127.0.0.1", port))
    if os.fork() == 0:
        time.sleep(5)  # holds it, without listening, while the first server is gone
        os._exit(0)
    sys.exit("address in use")
"""
    argv = session(tmp_path, hub, [sys.executable, "-c", thief + SERVER])
    settings = json.loads((tmp_path / "session.json").read_text())
    settings["environment"]["CARME_JUPYTER"] = str(tmp_path)
    (tmp_path / "session.json").write_text(json.dumps(settings))
    with subprocess.Popen(argv) as launcher:
        port = reported_port(hub)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert launcher.wait(10) == 0
    assert (tmp_path / "mark").exists()


def test_files_for_jupyter_are_written_and_found(tmp_path, hub):
    argv = session(tmp_path, hub, [sys.executable, "-c", SHOW])
    settings = json.loads((tmp_path / "session.json").read_text())
    settings["files"] = {"config/a.py": "x = 1", "share/labextensions/b/package.json": "{}"}
    settings["files"]["bin/program"] = "#!/bin/sh"
    (tmp_path / "session.json").write_text(json.dumps(settings))
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=20, env={"JUPYTER_PATH": "/image/share"}
    )
    root = tmp_path / "jupyter"
    assert (root / "config/a.py").read_text() == "x = 1"
    assert (root / "bin/program").stat().st_mode & 0o777 == 0o700
    assert f"{root}/share:/image/share {root}/config {root}" in done.stdout


def test_kernels_get_a_folder_that_is_gone_with_the_session(tmp_path, hub):
    """It is for this user alone, and short enough for the address of a unix socket."""
    show = """
import os
folder = os.environ["JUPYTER_RUNTIME_DIR"]
open(os.path.join(folder, "left-over"), "w").close()
print(folder, oct(os.stat(folder).st_mode), flush=True)
"""
    argv = session(tmp_path, hub, [sys.executable, "-c", show])
    folders = []
    for _ in range(2):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, umask=0)
        folder, mode = done.stdout.splitlines()[0].split()
        folders.append(folder)
        assert mode == "0o40700"
        assert len(f"{folder}/kernel-{uuid.uuid4()}-ipc-5") < 107
        assert not Path(folder).exists()
    assert folders[0] != folders[1]


def test_folders_of_killed_sessions_are_removed_and_no_others(tmp_path, hub):
    show = """
import os, time
launcher = os.getppid()
print(os.environ["JUPYTER_RUNTIME_DIR"], flush=True)
while os.environ["STAYS"] == "yes" and os.getppid() == launcher:
    time.sleep(0.05)
"""
    argv = session(tmp_path, hub, [sys.executable, "-c", show])

    def launch(stays):
        environment = {**os.environ, "STAYS": stays}
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)

    older_release = Path(tempfile.mkdtemp(prefix="carme-", dir="/tmp"))
    (older_release / "kernel-1.json").touch()
    try:
        with launch("yes") as killed, launch("yes") as running:
            left, in_use = (Path(p.stdout.readline().strip()) for p in (killed, running))
            killed.kill()
            killed.wait(10)
            assert left.is_dir()
            with launch("no") as third:
                third.stdout.read()
            assert not left.exists()
            assert in_use.is_dir(), "its launcher runs"
            assert older_release.is_dir(), "nobody knows whether it is in use"
            running.terminate()
        assert not in_use.exists()
    finally:
        shutil.rmtree(older_release)


def test_files_that_cannot_be_written_stop_the_session(tmp_path, hub):
    """Without them, kernels would be open to other users."""
    argv = session(tmp_path, hub, [sys.executable, "-c", "print('started')"])
    settings = json.loads((tmp_path / "session.json").read_text())
    settings["files"] = {"config/a.py": "x = 1"}
    (tmp_path / "session.json").write_text(json.dumps(settings))
    (tmp_path / "jupyter").write_text("not a folder")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "the session's files cannot be written" in done.stderr
    assert "started" not in done.stdout


SHOW = """
import os
print(os.environ["JUPYTER_PATH"], os.environ["JUPYTER_CONFIG_PATH"], os.environ["CARME_JUPYTER"])
"""
