"""The inventory of services, resolved for the one-machine cluster and for deployed hosts."""

import re
from pathlib import Path

import pytest

from carme.config import Config
from carme.config.services import deployed_services, entries, local_services
from carme.local import services
from carme.local.layout import Layout, ensure_secrets

CONFIG = Config.model_validate(
    {
        "hub": {"url": "http://127.0.0.1:16888", "user": "hubby", "api_address": "10.0.0.1"},
        "service": {"port": 16880, "user": "oracle"},
        "prometheus": {"url": "http://127.0.0.1:9090"},
    }
)


def test_the_one_machine_cluster() -> None:
    table = {s.unit: (s.name, s.user, s.ports) for s in local_services(CONFIG, virtual_gpus=True)}
    assert table == {
        "vgpu": ("virtual GPUs", "root", ()),
        "munged": ("munge", "munge", ()),
        "mariadbd": ("mariadb", "mysql", (16806,)),
        "slurmdbd": ("slurmdbd", "slurm", (16819,)),
        "slurmctld": ("slurmctld", "slurm", (16817,)),
        "slurmd-gpu01": ("slurmd gpu01", "root", (16830,)),
        "slurmd-gpu02": ("slurmd gpu02", "root", (16831,)),
        "slurmd-cpu01": ("slurmd cpu01", "root", (16832,)),
        "slurmrestd": ("slurmrestd", "carme-view", ()),
        "view": ("view", "carme-view", ()),
        "proxy": ("proxy", "hubby", (16888, 8001)),
        "hub": ("hub", "hubby", (8081,)),
        "exporter-gpu01": ("exporter gpu01", "carme-exporter", (16850,)),
        "exporter-gpu02": ("exporter gpu02", "carme-exporter", (16851,)),
        "exporter-cpu01": ("exporter cpu01", "carme-exporter", (16852,)),
        "exporter-controller": ("exporter cluster", "carme-exporter", (16853,)),
        "discovery": ("discovery", "prometheus", ()),
        "prometheus": ("prometheus", "prometheus", (16890,)),
        "alertmanager": ("alertmanager", "prometheus", (16893,)),
        "service": ("service", "oracle", (16880,)),
    }


def test_a_deployed_cluster() -> None:
    ports = {"SlurmctldPort": 6817, "SlurmdPort": 6818}
    table = {
        s.unit: (s.name, s.user, s.ports, s.address)
        for s in deployed_services(CONFIG, "gpu01", ports)
    }
    assert "vgpu" not in table
    assert table["slurmd"] == ("slurmd gpu01", "root", (6818,), "127.0.0.1")
    assert table["slurmdbd"][2] == ()  # this host has no such setting
    assert table["carme-proxy"] == ("proxy", "carme-proxy", (16888, 8001), "10.0.0.1")
    assert table["carme-exporter"][2] == (9810,)
    assert table["carme-exporter-controller"][2] == (9811,)
    assert table["prometheus"][2] == (9090,)
    assert table["grafana-server"] == ("grafana", "grafana", (3000,), "127.0.0.1")


def test_a_hub_below_a_path_is_asked_there() -> None:
    hub = CONFIG.hub.model_copy(update={"url": "https://hpc.example/jupyter"})
    services = local_services(CONFIG.model_copy(update={"hub": hub}), virtual_gpus=False)
    health = {service.unit: service.health for service in services}
    assert health["hub"] == health["proxy"] == "/jupyter/hub/health"
    assert health["service"] == "/jupyter/services/carme/healthz"
    assert health["prometheus"] == "/-/ready"


def test_virtual_gpus_are_optional() -> None:
    assert "vgpu" not in {s.unit for s in local_services(CONFIG, virtual_gpus=False)}


def test_names_units_and_processes_are_unique() -> None:
    for field in ("name", "unit", "process"):
        values = [value for entry in entries() if (value := getattr(entry, field))]
        assert len(values) == len(set(values)), field


def test_each_process_has_a_command_and_a_health_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(Layout, "vgpu_library", tmp_path)
    local = CONFIG.local.model_copy(update={"dir": tmp_path})
    layout = Layout(CONFIG.model_copy(update={"local": local}), tmp_path)
    secrets = ensure_secrets(tmp_path)
    local = services.supervised_services(layout, secrets, tmp_path / "proxy.js")
    processes = {service.name: service for service in local}
    assert list(processes) == [service.unit for service in layout.services()]
    assert processes["slurmd-cpu01"].command.argv == ["/bin/slurmd", "-D", "-N", "cpu01"]
    assert processes["proxy"].address == "http://127.0.0.1:16888"
    assert processes["hub"].address == "127.0.0.1:8081"
    assert "CARME_VGPU_STATE" in processes["exporter-gpu01"].command.environment
    assert "CARME_VGPU_STATE" not in processes["exporter-cpu01"].command.environment
    assert processes["exporter-controller"].command.argv[1:3] == ["--mode", "controller"]
    # `up` restarts exactly what runs Carme's code when that changed.
    for service in processes.values():
        has_build = "CARME_BUILD" in service.command.environment
        assert has_build == service.service.entry.restart_on_upgrade, service.name


@pytest.mark.parametrize("path", ["", "/", "/jupyter", "/jupyter/"])
def test_hub_and_proxy_are_checked_below_the_path_of_the_hub(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(services, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(Layout, "vgpu_library", tmp_path)
    monkeypatch.setattr(services.health_checks, "http_ok", lambda url, _: urls.append(url))
    hub = CONFIG.hub.model_copy(update={"url": f"http://127.0.0.1:16888{path}"})
    local = CONFIG.local.model_copy(update={"dir": tmp_path})
    layout = Layout(CONFIG.model_copy(update={"local": local, "hub": hub}), tmp_path)
    secrets = ensure_secrets(tmp_path)
    for service in services.supervised_services(layout, secrets, tmp_path / "proxy.js"):
        if service.name in ("proxy", "hub"):
            service.health_check()
        if service.name == "proxy":
            argv = service.command.argv
    base = path.rstrip("/")
    assert argv[argv.index("--error-target") + 1] == f"http://127.0.0.1:8081{base}/hub/error"
    assert "--host-routing" in argv  # sessions are at *.localhost
    assert urls == [f"http://127.0.0.1:{port}{base}/hub/health" for port in (16888, 8081)]


def test_docs_name_the_same_users() -> None:
    """A table row of the docs that begins with a service and a user names the inventory's user."""
    users = {entry.name: entry.user for entry in entries() if entry.unit and "." not in entry.user}
    docs = Path(__file__).resolve().parents[3] / "docs/explanation"
    rows = [
        (path.name, name, user)
        for path in sorted(docs.glob("*.md"))
        for name, user in re.findall(r"^\| (\w+) \| `([a-z-]+)` \|", path.read_text(), re.MULTILINE)
        if name in users
    ]
    assert any(name == "proxy" for _, name, _ in rows)
    assert [row for row in rows if row[2] != users[row[1]]] == []
