"""`carme-service` from a plain command line: it starts, logs, and ends when it is told to."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests

PROGRAM = Path(sys.executable).with_name("carme-service")


def test_it_starts_and_stops(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "carme.toml"
    config.write_text(
        f'[service]\nport = {port}\ndatabase = "sqlite:///{tmp_path}/service.sqlite"\n'
        f'[view]\nsocket = "{tmp_path}/view.sock"\n'
    )
    tokens = {"JUPYTERHUB_API_TOKEN": "own", "CARME_PROMETHEUS_TOKEN": "prom"}
    env = {**os.environ, "CARME_CONFIG": str(config), **tokens}
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen([PROGRAM], env=env, stdout=out, stderr=out)
    try:
        address = f"http://127.0.0.1:{port}/services/carme"
        health = _wait(address, server)
        assert health["database"] == "ok"
        assert "No such file" in health["slurm view"]
        metrics = requests.get(
            f"{address}/metrics", headers={"Authorization": "Bearer prom"}, timeout=20
        )
        assert "carme_service_requests_total" in metrics.text
        server.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        assert server.wait(30) == 0
        assert time.monotonic() - begin < 10  # a second, on a machine with nothing else to do
    finally:
        server.kill()
    assert log.read_text().splitlines()[0].endswith(f"INFO listening on http://127.0.0.1:{port}")
    assert "Traceback" not in log.read_text()
    assert "own" not in log.read_text()


def _wait(address, server):
    for _ in range(300):
        assert server.poll() is None
        try:
            answer = requests.get(f"{address}/healthz", timeout=20)
        except requests.ConnectionError:
            time.sleep(0.2)
            continue
        if answer.status_code == 200:
            return answer.json()
        time.sleep(0.2)
    raise AssertionError("it does not answer")


def test_a_wrong_configuration_is_one_line(tmp_path):
    config = tmp_path / "carme.toml"
    config.write_text('[service]\nport = "x"\n')
    env = {**os.environ, "CARME_CONFIG": str(config)}
    done = subprocess.run(
        [PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "service.port" in done.stderr
    assert len(done.stderr.splitlines()) == 1
