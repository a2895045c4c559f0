"""From bare hosts to a session on a node, and again with nothing changed."""

import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from support.cells import run_cell
from support.cluster import wait_for
from support.hub import User

from .conftest import PASSWORDS, Site, recap

pytestmark = pytest.mark.timeout(1800)
UNITS = {
    "front": (
        "munge",
        "mariadb",
        "slurmdbd",
        "slurmctld",
        "carme-view",
        "carme-proxy",
        "carme-hub",
        "carme-exporter-controller",
    ),
    "node1": ("munge", "slurmd", "carme-exporter"),
    "node2": ("munge", "slurmd", "carme-exporter"),
}


def person(site: Site, name: str) -> User:
    """A user at the proxy's TLS address, whose certificate is checked."""
    front = site.host("front")
    certificate = site.folder / "hub.crt"
    certificate.write_text(front.run("cat", "/etc/carme/tls/hub.crt"))
    hub = SimpleNamespace(url=f"https://{front.address}")
    cluster = SimpleNamespace(config=SimpleNamespace(hub=hub), password=PASSWORDS.__getitem__)
    user = User(cluster, name)  # type: ignore[arg-type]
    user.web.verify = str(certificate)
    return user


def everything_runs(site: Site) -> bool:
    for host, units in UNITS.items():
        states = site.host(host).ssh("systemctl", "is-active", *units).stdout.split()
        if states != ["active"] * len(units):
            return False
    said = site.host("front").ssh("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
    return {"node1 idle", "node2 idle"} <= {line.strip() for line in said}


def test_the_first_run_converges(site: Site) -> None:
    assert everything_runs(site)
    assert all(host["failed"] == 0 for host in recap(site.first).values())
    # A node that should have GPUs and has no driver is reported, and works.
    assert "there is no /dev/nvidia0" in " ".join(site.first.split())


def test_a_second_run_changes_nothing(site: Site) -> None:
    output = site.play("site.yml")
    assert {host: found["changed"] for host, found in recap(output).items()} == dict.fromkeys(
        ("localhost", "front", "node1", "node2"), 0
    ), output[-8000:]


def test_check_mode_on_a_deployed_system(site: Site) -> None:
    output = site.play("site.yml", "--check", "--diff")
    assert all(found["changed"] == 0 for found in recap(output).values()), output[-8000:]


def test_a_session_on_the_second_node(site: Site) -> None:
    alice = person(site, "alice")
    assert alice.login("wrong").status_code == 403
    assert alice.login().status_code == 302
    front = site.host("front")
    front.run("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    try:
        alice.start(120, partition="main", image="base", cpus=1, memory_gb=1, hours=1, gpus=0)
        said = run_cell(
            alice,
            "import os, socket; print(socket.gethostname(), os.getuid(),"
            " os.path.exists('/.singularity.d'))",
        )
        assert said.split() == ["node2", "3001", "True"]
    finally:
        front.run("scontrol", "update", "nodename=node1", "state=resume")
    alice.stop()


def test_metrics_need_a_password(site: Site) -> None:
    for host, port in (("node2", 9810), ("front", 9811)):
        address = f"http://{site.host(host).address}:{port}/metrics"
        secret = site.host("front").run("cat", "/etc/carme/secrets/exporter")
        assert requests.get(address, timeout=10).status_code == 401
        login = ("prometheus", secret)
        wait_for(lambda: requests.get(address, auth=login, timeout=10).ok, 30, address)  # noqa: B023


def test_only_people_with_a_job_log_in_to_a_node(site: Site) -> None:
    assert "pam_slurm_adopt.so" in site.host("node1").run("cat", "/etc/pam.d/sshd")


@pytest.mark.parametrize("host", ["node1", "front"])
def test_a_reboot_brings_all_back(site: Site, host: str) -> None:
    site.host(host).reboot()
    wait_for(lambda: everything_runs(site), 180, f"all parts after a reboot of {host}")


def test_a_third_node_joins(site: Site) -> None:
    site.machines.add("node3")
    site.nodes.append("node3")
    site.write_inventory()
    output = site.play("site.yml", "--limit", "front,node3")
    assert "node1" not in recap(output)
    state = site.host("front").run("sinfo", "-h", "-N", "-n", "node3", "-o", "%T").split()
    assert state == ["idle"]
    job = ["srun", "--uid=alice", "-w", "node3", "--chdir=/tmp", "hostname"]
    assert site.host("front").run(*job).strip() == "node3"


def test_the_doctor_finds_nothing_that_fails(site: Site) -> None:
    for host in ("front", "node1"):
        done = site.host(host).ssh("carme", "doctor")
        assert done.returncode == 0, f"{host}:\n{done.stdout}{done.stderr}"


def test_a_backup_comes_to_the_control_machine(site: Site, tmp_path: Path) -> None:
    site.play("backup.yml", "-e", f"backup_to={tmp_path}")
    [archive] = tmp_path.glob("carme-*.tar.gz")
    with tarfile.open(archive) as file:
        names = set(file.getnames())
    assert {"./hub.sqlite", "./accounting.sql", "./slurm-state", "./etc/munge.key"} <= names
