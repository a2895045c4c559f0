"""Discovery: which nodes become targets, and when the file of targets stays as it is."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from carme.config import Config
from carme.errors import ConfigError, UnavailableError
from carme.slurm.models import Node
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import NodeState
from carme.templates import render
from carme_monitoring.discovery import Discovery, discovery, local_ports, targets
from support.discovery_load import discovery_ms

NODES = (
    Node(name="n2", address="10.0.0.2", state=NodeState.IDLE),
    Node(name="n1", address="10.0.0.1", state=NodeState.DOWN, flags=("NOT_RESPONDING",)),
    Node(name="n3", state=NodeState.MIXED),
    Node(name="n4", address="fd00::4", state=NodeState.IDLE, flags=("DRAIN",)),
    Node(name="cloud1", state=NodeState.IDLE, flags=("CLOUD", "POWERED_DOWN")),
    Node(name="later", state=NodeState.FUTURE),
)


class View:
    """Says what the test tells it to."""

    def __init__(self, *answers: Snapshot | Exception) -> None:
        self._answers = list(answers)

    def snapshot(self) -> Snapshot:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def nodes_in(path: Path) -> list[str]:
    return [group["labels"]["node"] for group in json.loads(path.read_text())]


def test_nodes_are_reached_at_slurms_address() -> None:
    groups = targets(NODES, "c", 9810, {"n2": 7000})
    assert [group["targets"] for group in groups] == [
        ["10.0.0.1:9810"],
        ["10.0.0.2:7000"],
        ["n3:9810"],
        ["[fd00::4]:9810"],
    ]
    assert groups[0]["labels"] == {"cluster": "c", "node": "n1"}


def test_the_file_follows_slurm_and_stays_while_slurm_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    view = View(
        UnavailableError("no view"),
        Snapshot(taken_at=1, nodes=NODES),
        UnavailableError("no view"),
        Snapshot(taken_at=1, nodes=NODES[:1], controller="away", error="slurmctld is away"),
        Snapshot(taken_at=2),
        Snapshot(taken_at=3, nodes=NODES[:2]),
        Snapshot(taken_at=4, nodes=NODES[:2]),
    )
    discovery = Discovery(view, path, "c", 9810, None)
    assert discovery.update() is None
    assert not path.exists()
    assert discovery.update() == 4
    for _ in range(3):
        assert discovery.update() is None
        assert nodes_in(path) == ["n1", "n2", "n3", "n4"]
    assert discovery.update() == 2
    assert nodes_in(path) == ["n1", "n2"]
    assert path.stat().st_mode & 0o777 == 0o640
    os.utime(path, (1, 1))
    assert discovery.update() == 2
    assert path.stat().st_mtime > 1, "an unchanged list is confirmed"
    assert [file.name for file in tmp_path.iterdir()] == ["nodes.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_run_by_root_it_leaves_the_file_to_the_folders_owner(tmp_path: Path) -> None:
    shutil.chown(tmp_path, "daemon")
    view = View(Snapshot(taken_at=1, nodes=NODES))
    Discovery(view, tmp_path / "nodes.json", "c", 9810, None).update()
    assert (tmp_path / "nodes.json").owner() == "daemon"


def test_a_folder_that_is_gone_is_no_crash(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    view = View(Snapshot(taken_at=1, nodes=NODES))
    assert Discovery(view, blocker / "nodes.json", "c", 9810, None).update() is None


def test_one_machine_has_a_port_for_each_node() -> None:
    assert local_ports(Config()) == {"gpu01": 16850, "gpu02": 16851, "cpu01": 16852}


def test_a_missing_folder_is_said_at_once(tmp_path: Path) -> None:
    config = tmp_path / "carme.toml"
    config.write_text('[prometheus]\ntargets = "/nonexistent/nodes.json"\n')
    done = CliRunner().invoke(discovery, ["--config", str(config), "--once"])
    assert isinstance(done.exception, ConfigError)
    assert "/nonexistent" in str(done.exception)


def test_ten_thousand_nodes_take_under_two_seconds() -> None:
    assert discovery_ms(10_000, rounds=3) < 2000


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (prometheus)")
@pytest.mark.parametrize("service", ["", "127.0.0.1:5000"])
def test_prometheus_takes_its_configuration(tmp_path: Path, service: str) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_text("secret")
    path = tmp_path / "nodes.json"
    Discovery(View(Snapshot(taken_at=1, nodes=NODES)), path, "c", 9810, None).update()
    settings = Config().prometheus.model_copy(update={"targets": path})
    text = render(
        "prometheus.yml",
        cluster_name="c",
        prometheus=settings.model_dump(),
        rules_dir=tmp_path / "rules",
        prometheus_user="carme",
        prometheus_password_file=tmp_path / "a",
        prometheus_address="127.0.0.1:9090",
        alertmanager_user="carme",
        alertmanager_password_file=tmp_path / "b",
        alertmanager_address="127.0.0.1:9093",
        hub_token_file=tmp_path / "c",
        base_url="/jupyter/",
        hub_address="127.0.0.1:8081",
        service_address=service,
        exporter_user="prometheus",
        exporter_password_file=tmp_path / "d",
        controller_exporter="127.0.0.1:9811",
    )
    file = tmp_path / "prometheus.yml"
    file.write_text(text)
    done = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    assert jobs["hub"]["metrics_path"] == "/jupyter/hub/metrics"
    assert ("carme-service" in jobs) == bool(service)
