"""The command lines: once, as a service, and who sees what in `carme top`."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from carme.errors import CarmeError
from carme.prometheus import Sample
from carme_monitoring import top, top_rows
from carme_monitoring.accounting.job_table import NodeJob
from carme_monitoring.commands import exporter
from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import BY_NAME
from carme_monitoring.process import ExporterProcess
from support.ports import free_port

from .conftest import World, series_of

PROGRAM = [sys.executable, "-c", "from carme_monitoring.commands import main; main()"]


@pytest.fixture(autouse=True)
def own_config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one of a cluster that runs on this machine."""
    path = tmp_path_factory.mktemp("config") / "carme.toml"
    path.write_text("")
    monkeypatch.setenv("CARME_CONFIG", str(path))


def call(*words: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def test_once_prints_a_collection(tmp_path: Path) -> None:
    done = call("--once", "--node", "n1", "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert 'carme_exporter_info{version="' in done.stdout
    assert 'carme_collector_success{collector="host"} 1' in done.stdout
    assert 'carme_collector_success{collector="gpu"} 1' in done.stdout  # it has none
    assert list(tmp_path.iterdir()) == []


def test_without_credentials_it_does_not_start(tmp_path: Path) -> None:
    done = call("--web-config", tmp_path / "none.yml", "--state", tmp_path)
    assert done.returncode == 1
    assert "requires credentials by default" in done.stderr
    empty = tmp_path / "empty.yml"
    empty.write_text("{}")
    done = call("--web-config", empty, "--state", tmp_path)
    assert done.returncode == 1
    assert "requires no credentials" in done.stderr


def test_the_service_serves_hears_the_hook_and_ends(tmp_path: Path) -> None:
    web, secret = tmp_path / "web.yml", tmp_path / "secret"
    assert call("web-config", web, "--password-file", secret).returncode == 0
    port, run = free_port(), tmp_path / "run"
    command = [*PROGRAM, "--node", "n1", "--port", str(port), "--web-config", str(web),
               "--run", str(run), "--state", str(tmp_path / "state")]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        opener = urllib.request.build_opener()
        manager = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        manager.add_password(None, url, "prometheus", secret.read_text())
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
        for _ in range(100):
            try:
                with opener.open(url, timeout=5) as answer:
                    text = answer.read().decode()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        assert "carme_node_cpus" in text
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=5)
        assert refused.value.code == 401
        refused.value.close()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(run / "listen/50-exporter.n1.sock"))
            client.sendall(b'{"event": "prolog", "node": "n1", "jobid": 5}\n')
            assert json.loads(client.recv(4096))["ok"] is True
        assert top.read(run / "top") == []
    finally:
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "serving on" in said
    assert (tmp_path / "state/n1.json").exists()


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call("--open", "--port", str(port), "--state", tmp_path, "--node", "n1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_the_hook_must_mean_this_node(world: World) -> None:
    service = ExporterProcess(world.exporter(port=free_port()), None)
    assert "error" in service.handle({"node": "other", "jobid": 5})
    assert "error" in service.handle({"node": "n1", "jobid": "5"})
    assert service.handle({"node": "n1", "jobid": 5}) == {"ok": True, "reading": True}
    assert service._sees_all(0)
    assert service._sees_all(os.geteuid())
    assert not service._sees_all(123456789)
    service.server.server_close()


def test_top_draws_a_table(world: World) -> None:
    exporter = world.exporter()
    rows = top_rows.job_rows(
        exporter.collect(), "n1", exporter.accounting.state.table.jobs.values(), 1_700_000_200
    )
    assert {row["jobid"]: row["gpu_watts"] for row in rows} == {101: 300.5, 102: 55.0, 103: 0}
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(top.draw(rows))
    text = console.export_text()
    assert "ann" in text
    assert "95%" in text
    assert "300 W" in text or "301 W" in text


def test_the_whole_cluster_out_of_prometheus(world: World) -> None:
    samples = world.exporter().collect()
    series = [
        Sample({"__name__": name, "instance": "x", **dict(zip(labels, key, strict=True))}, value)
        for name, key, value in series_of(samples)
        if (labels := BY_NAME[name].labels) is not None
    ]
    shown = {row["jobid"]: row for row in top_rows.cluster_rows(series, 1_700_000_200)}
    assert set(shown) == {101, 102, 103}
    assert (shown[101]["user"], shown[101]["gpu_watts"]) == ("ann", 300.5)
    assert shown[101]["seconds"] == 100
    assert top_rows.cluster_rows([Sample({"__name__": "up"}, 1)], 0) == []


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:1", "http://127.0.0.1:1"])
def test_a_prometheus_that_is_none(url: str) -> None:
    with pytest.raises(CarmeError):
        top_rows.read_cluster(url, None)


def test_virtual_gpus_are_called_so() -> None:
    samples, entry = Samples(), NodeJob(7, 0, user="[red]x", gpus=(0,))
    samples.add("carme_gpu_info", ("0", "G", "Virtual T4", "0", "0", "", "", "true"), 1)
    samples.add("carme_job_gpu_held", ("7", "n1", "0", "G"), 1)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(top.draw(top_rows.job_rows(samples, "n1", [entry], 10)))
    text = console.export_text()
    assert "1 virtual" in text
    assert "nothing computes on them" in text
    assert "[red]x" in text


def test_a_web_configuration_with_a_given_password_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    argv = ["web-config", str(path), "--password-stdin", "--keep"]
    first = CliRunner().invoke(exporter, argv, input="a-given-password")
    made = path.read_text()
    second = CliRunner().invoke(exporter, argv, input="a-given-password")
    assert "changed" in first.output
    assert "changed" not in second.output
    assert path.read_text() == made
    CliRunner().invoke(exporter, argv, input="another-password")
    assert path.read_text() != made
