"""From bare hosts to a session on a node, and again with nothing changed. The tests build on each
other, in this order."""

import json
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import requests

from carme.config import HubSettings
from support.cells import run_cell
from support.cluster import wait_for
from support.hub import User
from support.machines import let_in
from support.session_names import SITES

from .conftest import HUB_URL, PASSWORDS, Site, recap

pytestmark = pytest.mark.timeout(1800)
HEAD_UNITS = (
    *("munge", "mariadb", "slurmdbd", "slurmctld", "carme-view", "carme-proxy", "carme-hub"),
    *("carme-exporter-controller", "carme-discovery", "prometheus", "prometheus-alertmanager"),
    *("grafana-server", "carme-service", "carme-backup.timer"),
)
NODE_UNITS = ("munge", "slurmd", "carme-exporter")
RESNET = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}}


def person(site: Site, name: str) -> User:
    """A user at the proxy's TLS address, whose certificate is checked."""
    front = site.host("front")
    certificate = site.folder / "hub.crt"
    certificate.write_text(front.run("cat", "/etc/carme/tls/hub.crt"))
    SITES[urlsplit(HUB_URL).hostname or ""] = front.address
    hub = HubSettings(url=HUB_URL, session_host=f"*.{urlsplit(HUB_URL).hostname}")
    cluster = SimpleNamespace(config=SimpleNamespace(hub=hub), password=PASSWORDS.__getitem__)
    user = User(cluster, name)  # type: ignore[arg-type]
    user.web.verify = str(certificate)
    return user


def predict(site: Site, name: str) -> requests.Response:
    """A prediction through proxy and hub, with a token of the user."""
    user = person(site, name)
    assert user.login().status_code == 302
    token = user.api("POST", f"/users/{name}/tokens", json={}).json()["token"]
    return requests.post(
        f"{user.url}/services/carme/api/v1/predictions",
        json={**RESNET, "keep": True},
        headers={"Authorization": f"token {token}"},
        verify=str(user.web.verify),
        timeout=60,
    )


def find_problems(site: Site) -> list[str]:
    """Units, nodes and scrape targets that do not work; empty if all work."""
    problems = []
    for host in ("front", *site.nodes):
        units = HEAD_UNITS if host == "front" else NODE_UNITS
        states = site.host(host).ssh("systemctl", "is-active", *units).stdout.split()
        states += ["?"] * (len(units) - len(states))
        bad = [f"{host}: {unit} is {state}" for unit, state in zip(units, states, strict=True)]
        problems += [line for line in bad if not line.endswith("is active")]
    states_of_nodes = site.host("front").ssh("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
    expected = sorted(f"{node} idle" for node in site.nodes)
    if sorted({line.strip() for line in states_of_nodes}) != expected:
        problems.append(f"sinfo: {states_of_nodes}")
    if not problems:
        try:
            up = {row["metric"]["instance"] for row in site.query('up{job="carme"} == 1')}
            down = [row["metric"] for row in site.query("up == 0")]
        except AssertionError as error:  # its unit is active before it listens
            return [f"Prometheus: {error}"]
        if up != set(site.nodes) or down:
            problems.append(f"Prometheus reads {sorted(up)}, and cannot read {down}")
    return problems


def wait_until_well(site: Site, seconds: float, event: str) -> None:
    last: list[str] = []

    def well() -> bool:
        last[:] = find_problems(site)
        return not last

    try:
        wait_for(well, seconds, event)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


def doctor(site: Site, host: str) -> list[str]:
    """The lines of `carme doctor` on the host that are not ok, without the one that this site's
    names are in no DNS."""
    result = site.host(host).ssh("carme", "doctor", "--json")
    assert result.stdout, result.stderr
    lines = json.loads(result.stdout)
    bad = [line for line in lines if line["level"] not in ("ok", "skipped")]
    bad = [line for line in bad if line["check"] != "session host"]
    return [f"{host}: {line}" for line in bad] or ([result.stdout] if result.returncode else [])


def test_the_first_run_converges(site: Site) -> None:
    assert all(host["failed"] == 0 for host in recap(site.first).values())
    # A node that declares GPUs but has no driver is reported, and works.
    assert "there is no /dev/nvidia0" in " ".join(site.first.split())
    wait_until_well(site, 180, "all parts after the first run")


def test_a_run_leaves_nothing_on_the_control_machine(site: Site) -> None:
    assert list((site.folder / "scratch").iterdir()) == []


def test_a_second_run_changes_nothing(site: Site) -> None:
    output = site.play("site.yml")
    assert {host: counts["changed"] for host, counts in recap(output).items()} == dict.fromkeys(
        ("front", "node1", "node2"), 0
    ), output[-8000:]


def test_a_session_on_the_second_node(site: Site) -> None:
    alice = person(site, "alice")
    assert alice.login("wrong").status_code == 403
    assert alice.login().status_code == 302
    front = site.host("front")
    front.run("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    try:
        alice.start(120, partition="main", image="base", cpus=1, memory_gb=1, hours=1, gpus=0)
        output = run_cell(
            alice,
            "import os, socket; print(socket.gethostname(), os.getuid(),"
            " os.path.exists('/.singularity.d'))",
        )
        assert output.split() == ["node2", "3001", "True"]
        job = front.run("squeue", "-h", "-u", "alice", "-o", "%A").strip()
        # The job's metrics reach Prometheus, and alice sees them in her report.
        series = f'carme_job_cpu_seconds_total{{jobid="{job}",node="node2"}}'
        wait_for(lambda: site.query(series), 60, f"series of job {job}")
        info = f'carme_job_info{{jobid="{job}"}}'
        [job_info] = wait_for(lambda: site.query(info), 60, f"the name of job {job}")
        assert job_info["metric"]["user"] == "alice"
        report = json.loads(
            front.run("runuser", "-u", "alice", "--", "carme", "job", job, "--json")
        )
        assert not report["problem"]
    finally:
        front.run("scontrol", "update", "nodename=node1", "state=resume")
        alice.stop()


def test_a_prediction_through_the_hub(site: Site) -> None:
    response = predict(site, "alice")
    assert response.status_code in (200, 201), response.text
    assert response.json()["prediction"]


@pytest.mark.parametrize(
    ("host", "port"), [("node2", 9810), ("front", 9811), ("front", 9090), ("front", 9093)]
)
def test_metrics_need_a_password(site: Site, host: str, port: int) -> None:
    address = site.host(host).address if port > 9800 else "127.0.0.1"
    code = (
        "import sys, urllib.request, urllib.error\n"
        "try: urllib.request.urlopen(sys.argv[1], timeout=10)\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    url = f"http://{address}:{port}/metrics"
    assert site.host(host).run("python3", "-c", code, url).strip() == "401"


def test_secrets_are_closed_to_people(site: Site) -> None:
    front = site.host("front")
    for path in (
        *("/etc/carme/secrets", "/etc/carme/prometheus", "/etc/carme/alertmanager"),
        *("/etc/carme/prometheus-login", "/etc/carme/service.env", "/etc/carme/hub.env"),
        *("/var/lib/prometheus", "/var/lib/carme-service", "/etc/grafana/carme-admin-password"),
    ):
        front.run("test", "-e", path)
        assert front.ssh("runuser", "-u", "alice", "--", "test", "-r", path).returncode == 1, path


def test_only_admins_and_people_with_a_job_log_in_to_a_node(site: Site) -> None:
    front, node = site.host("front"), site.host("node1")
    home = site.machines.folder / "shared/home/alice"  # made when she logged in to the hub
    let_in(home, site.machines.key)
    assert node.ssh("sudo", "id", "-u", user="admin").stdout.strip() == "0"
    assert node.ssh("true", user="alice").returncode == 255
    batch = ("sbatch", "--parsable", "--uid=alice", "--chdir=/tmp")
    job = front.run(*batch, "-w", "node1", "--wrap=sleep 300").strip()

    def login_in_the_job() -> str:
        """The cgroups of alice's login if it belongs to the job; else empty."""
        groups = str(node.ssh("cat", "/proc/self/cgroup", user="alice").stdout)
        return groups if f"/job_{job}/step_extern" in groups else ""

    try:
        # Slurm calls a job running before its step for logins is there.
        groups = wait_for(login_in_the_job, 60, f"a login of alice in job {job}")
    finally:
        front.run("scancel", job)
    # A user slice would take the login out of the job.
    assert "user-3001.slice" not in groups
    wait_for(lambda: node.ssh("true", user="alice").returncode == 255, 60, "a closed node")


def test_the_doctor_finds_nothing(site: Site) -> None:
    assert [line for host in ("front", *site.nodes) for line in doctor(site, host)] == []


def test_a_node_comes_back_from_a_reboot(site: Site) -> None:
    site.host("node1").reboot()
    wait_until_well(site, 180, "all parts after a reboot of node1")


def test_a_third_node_joins(site: Site) -> None:
    site.machines.add("node3")
    site.nodes.append("node3")
    site.write_inventory()
    output = site.play("site.yml", "--limit", "front,node3")
    assert "node1" not in recap(output)
    wait_until_well(site, 180, "node3 in Slurm and in Prometheus")
    job = ["srun", "--uid=alice", "-w", "node3", "--chdir=/tmp", "hostname"]
    assert site.host("front").run(*job).strip() == "node3"
