"""What else happens in a cluster's life: a look at what would change, a node leaves, the head
reboots or is lost, Carme goes. The tests build on each other, and on test_deploy.py."""

import os
import tarfile
from pathlib import Path

import pytest

from support.cluster import wait_for

from .conftest import Site, changes, recap
from .test_deploy import doctor, person, predict, wait_until_well

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "CARME_WHOLE_LIFE" not in os.environ, reason="minutes more: ./dev test ansible runs it"
    ),
]


def test_check_mode_on_a_deployed_system(site: Site) -> None:
    output = site.play("site.yml", "--check", "--diff")
    # The run that added node3 was limited to it and the head.
    name = {"common : Write the names of all hosts to /etc/hosts"}
    assert changes(output) == {"node1": name, "node2": name}, output[-8000:]
    assert "node3" in output
    assert all(counts["failed"] == 0 for counts in recap(output).values())


def test_a_node_leaves(site: Site) -> None:
    leaving = site.nodes[-1]
    front = site.host("front")
    front.run("scontrol", "update", f"nodename={leaving}", "state=drain", "reason=leaves")
    arguments = ("-e", "remove_sure=yes", "-e", "remove_slurm=yes")
    site.play("remove.yml", "--limit", leaving, *arguments)
    site.nodes.remove(leaving)
    site.write_inventory()
    output = site.play("site.yml", "--limit", "front")
    assert set(recap(output)) == {"front"}
    wait_until_well(site, 90, f"a cluster without {leaving}")
    assert left_running(site, leaving) == []
    # Slurm no longer has the node.
    machine = site.host(leaving)
    assert "carme" not in machine.run("grep", "-v", "^#", "/etc/pam.d/sshd")
    assert machine.ssh("true", user="alice").returncode == 0


def left_running(site: Site, host: str) -> list[str]:
    """Units and processes of Carme on the host."""
    machine = site.host(host)
    process_list = machine.run(
        *("systemctl", "list-units", "--all", "--plain", "--no-legend"),
        *("carme-*", "prometheus*", "grafana*"),
    )
    active = [line for line in process_list.splitlines() if " active " in line]
    processes = machine.run("ps", "-eo", "args").splitlines()
    return [*active, *(line for line in processes if "/opt/carme/" in line)]


def test_the_head_comes_back_from_a_reboot(site: Site) -> None:
    site.host("front").reboot()
    wait_until_well(site, 240, "all parts after a reboot of the head")


def test_a_backup_onto_a_fresh_head(site: Site, tmp_path: Path) -> None:
    front = site.host("front")
    assert predict(site, "ada").status_code in (200, 201)
    hold = ("sbatch", "--uid=alice", "--chdir=/tmp", "--hold", "--job-name=kept", "--wrap=hostname")
    job = front.run(*hold).split()[-1]
    result = front.run("srun", "--uid=ada", "--chdir=/tmp", "--job-name=counted", "hostname")
    assert result.strip() in site.nodes
    counted = ("sacct", "-a", "-n", "-P", "-X", "-u", "ada", "-o", "jobname,state,user")
    wait_for(lambda: "counted|COMPLETED|ada" in front.run(*counted), 60, "the job in accounting")

    site.play("backup.yml", "--check", "-e", f"backup_to={tmp_path}")
    assert not list(tmp_path.iterdir())
    site.play("backup.yml", "-e", f"backup_to={tmp_path}")
    [archive] = tmp_path.glob("carme-*.tar.gz")
    with tarfile.open(archive) as file:
        names = set(file.getnames())
    expected = ("hub.sqlite", "service.sqlite", "accounting.sql", "slurm-state", "etc/munge.key")
    assert {f"./{name}" for name in expected} <= names

    site.add_head()
    site.play("site.yml", "--limit", "front")
    site.play("restore.yml", "-e", f"restore_from={archive}")
    wait_until_well(site, 120, "all parts on the restored head")
    front = site.host("front")
    assert "counted|COMPLETED|ada" in front.run(*counted)
    queue = front.run("squeue", "-h", "-o", "%A %u %j %T")
    assert queue.split("\n")[0] == f"{job} alice kept PENDING"
    front.run("scontrol", "release", job)
    job_state = ("sacct", "-n", "-P", "-X", "-j", job, "-o", "state")
    wait_for(lambda: "COMPLETED" in front.run(*job_state), 90, f"the end of job {job}")
    ada = person(site, "ada")
    assert ada.login().status_code == 302
    users = {user["name"] for user in ada.api("GET", "/users").json()}
    assert {"alice", "ada"} <= users
    token = ada.api("POST", "/users/ada/tokens", json={}).json()["token"]
    predictions = ada.web.get(
        f"{ada.url}/services/carme/api/v1/predictions",
        headers={"Authorization": f"token {token}"},
        timeout=30,
    )
    assert predictions.json()["items"]
    assert doctor(site, "front") == []


def test_carme_goes(site: Site) -> None:
    site.play("remove.yml", "-e", "remove_sure=yes")
    for host in ("front", *site.nodes):
        assert left_running(site, host) == []
        assert site.host(host).ssh("test", "-e", "/opt/carme").returncode == 1
    assert "idle" in site.host("front").run("sinfo", "-h", "-o", "%T")
