"""What should run on a host, from its files."""

from dataclasses import replace
from pathlib import Path

import pytest

from carme.config import Config, parse
from carme.config.services import entries
from carme.doctor import checklist, host_services, slurmconf
from carme.doctor.check import Level, run_checks

CONF = """
# Written by hand
ClusterName=atlas
SlurmctldHost=front(10.0.0.1)
SlurmctldHost=spare
SlurmctldPort=7000-7002
AuthInfo=socket=/run/m/munge.sock,ttl=60
SlurmdPort=7100
NodeName=cpu01 NodeHostname=box Port=7200
NodeName=DEFAULT Gres=gpu:a100:4 CPUs=8
NodeName=gpu[01-02] NodeAddr=10.0.0.[11-12] \\
    State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES
"""


def test_slurm_conf() -> None:
    conf = slurmconf.parse(CONF)
    assert conf.cluster == "atlas"
    assert conf.controllers == (("front", "10.0.0.1"), ("spare", "spare"))
    assert (conf.controller_port, conf.database_port) == (7000, 6819)
    assert conf.munge_socket == "/run/m/munge.sock"
    assert [(n.name, n.hostname, n.address, n.port) for n in conf.nodes] == [
        ("cpu01", "box", "box", 7200),
        ("gpu01", "gpu01", "10.0.0.11", 7100),
        ("gpu02", "gpu02", "10.0.0.12", 7100),
    ]
    assert [node.gpus for node in conf.nodes] == [0, 4, 4]
    assert [node.name for node in conf.on("gpu02.example.org")] == ["gpu02"]
    assert [node.name for node in conf.on("box")] == ["cpu01"]
    assert conf.on("front") == ()


def test_device_files_of_a_node() -> None:
    text = """
    NodeName=gpu[01-02] Name=gpu Type=a100 File=/dev/nvidia[0-1]
    NodeName=gpu03 Name=gpu File=/dev/nvidia7
    Name=mps Count=100
    """
    assert slurmconf.device_files(text, "gpu02") == ("/dev/nvidia0", "/dev/nvidia1")
    assert slurmconf.device_files(text, "gpu03") == ("/dev/nvidia7",)
    assert slurmconf.device_files("AutoDetect=nvml", "gpu01") == ()


def test_units_that_systemd_starts(tmp_path: Path) -> None:
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    for name in ("carme-hub.service", "slurmd.service", "backup.timer"):
        (wants / name).symlink_to("/dev/null")
    (tmp_path / "carme-view.service").touch()
    assert host_services.enabled_units(tmp_path) == {"carme-hub", "slurmd"}


def test_slurm_conf_is_found_where_slurmd_put_it(tmp_path: Path) -> None:
    assert slurmconf.find(None, tmp_path) is None
    cache = tmp_path / "var/lib/slurm/gpu01/conf-cache"
    cache.mkdir(parents=True)
    (cache / "slurm.conf").touch()
    assert slurmconf.find(None, tmp_path) == cache / "slurm.conf"
    own = tmp_path / "own.conf"
    assert slurmconf.find(own, tmp_path) is None
    own.touch()
    assert slurmconf.find(own, tmp_path) == own


HEAD = {"munge", "mariadb", "slurmdbd", "slurmctld", "carme-view", "carme-hub", "carme-proxy"}
HEAD |= {"carme-exporter-controller"}
NODE = {"munge", "slurmd", "carme-exporter"}


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A host that Ansible set up, by its name and units."""
    (tmp_path / "slurm.conf").write_text(CONF)
    (tmp_path / "carme-exporter-controller.service").write_text(
        "ExecStart=/opt/carme-exporter --mode controller --port 9999\n"
    )

    def make(name: str, units: set[str]) -> host_services.HostServices:
        monkeypatch.setattr(host_services, "_enabled", lambda: frozenset(units))
        monkeypatch.setattr(host_services.socket, "gethostname", lambda: name)
        monkeypatch.setattr(host_services, "_UNIT_FILES", tmp_path)
        config = parse(
            {
                "slurm": {"conf": str(tmp_path / "slurm.conf")},
                "hub": {"url": "https://front.example.org", "api_address": "10.0.0.1"},
                "exporter": {"listen": "10.0.0.1"},
                "local": {"dir": str(tmp_path / "none")},
            },
            "test",
        )
        return host_services.find(Path("/etc/carme/carme.toml"), config)

    return make


def test_a_head(deployed) -> None:
    site = deployed("front", HEAD)
    assert site.description == "head"
    assert site.service("proxy").ports == (443, 8001)
    assert site.service("exporter cluster").ports == (9999,)
    assert site.service("slurmctld").ports == (7000,)
    assert site.nodes == ()
    assert site.repair(site.service("hub")) == (
        "journalctl -u carme-hub -n 50; systemctl restart carme-hub"
    )
    names = {check.name for check in checklist.checks(site)}
    assert {"hub", "proxy", "nodes", "certificate", "backup", "sudo rule"} <= names
    assert "slurmd gpu01" not in names


def test_a_node(deployed) -> None:
    site = deployed("gpu01", NODE)
    assert site.description == "node gpu01"
    assert [service.name for service in site.services] == [
        "munge",
        "slurmd gpu01",
        "exporter gpu01",
    ]
    assert site.service("slurmd gpu01").ports == (7100,)
    checks = {check.name: check for check in checklist.checks(site)}
    assert {"GPUs gpu01", "cgroups", "container", "hub", "slurmctld"} <= set(checks)
    missing = ("proxy", "prometheus", "targets", "sudo rule", "nodes", "certificate", "backup")
    findings = run_checks([checks[name] for name in missing])
    assert {finding.level for finding in findings} == {Level.ABSENT}


def test_every_service_of_the_inventory_is_checked(deployed) -> None:
    units = {entry.unit for entry in entries() if entry.unit}
    site = deployed("gpu01", units)
    services = {service.name: service for service in site.services}
    assert {service.unit for service in services.values()} == units
    assert set(services) <= {check.name for check in checklist.checks(site)}


def test_another_user_of_the_view(deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory of services names the user, here and in Slurm."""
    site = deployed("front", HEAD)
    services = tuple(
        replace(service, user="viewer") if service.name == "view" else service
        for service in site.services
    )
    asked: list[str] = []
    monkeypatch.setattr(checklist.slurm, "read_operator", lambda _, user: asked.append(user))
    [check] = (
        check
        for check in checklist.checks(replace(site, services=services))
        if check.name == "view's right"
    )
    check.run()
    assert asked == ["viewer"]


def test_grafana_s_port_is_in_its_drop_in(deployed, tmp_path: Path) -> None:
    folder = tmp_path / "grafana-server.service.d"
    folder.mkdir()
    (folder / "carme.conf").write_text('[Service]\nEnvironment="GF_SERVER_HTTP_PORT=3456"\n')
    assert deployed("front", HEAD | {"grafana-server"}).service("grafana").ports == (3456,)


def test_a_host_that_is_both(deployed) -> None:
    assert deployed("gpu01", HEAD | NODE).description == "head and node gpu01"


def test_the_one_machine_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_services, "_enabled", frozenset)
    etc = tmp_path / "etc"
    (etc / "slurm").mkdir(parents=True)
    (etc / "slurm/slurm.conf").write_text(CONF)
    rendered = f'slurm.conf = "{etc}/slurm/slurm.conf"\nlocal.dir = "{tmp_path}"\n'
    (etc / "carme.toml").write_text(rendered)
    config = Config.model_validate({"local": {"dir": str(tmp_path)}})
    site = host_services.find(tmp_path / "mine.toml", config)
    assert site.folder == tmp_path
    assert site.config_path == etc / "carme.toml"
    assert site.config.slurm.conf == etc / "slurm/slurm.conf"
    assert site.up == f"carme up --dir {tmp_path}"
    assert f"{tmp_path}/log/hub.log" in site.repair(site.service("hub"))
    names = [service.name for service in site.services]
    assert {"slurmd gpu01", "slurmd cpu01", "exporter cluster", "alertmanager"} <= set(names)
    assert "virtual GPUs" not in names
    assert set(names) <= {check.name for check in checklist.checks(site)}
