"""`validate.yml` reports problems of an inventory before any host is changed."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import PLAYBOOKS, run_playbook

GOOD: dict[str, Any] = {
    "head": {"front": {"ansible_host": "10.0.0.1"}},
    "compute": {
        "node1": {"ansible_host": "10.0.0.11", "slurm_gpus": {"type": "a100", "count": 4}},
        "node2": {"ansible_host": "10.0.0.12"},
    },
    "vars": {"common_users": [{"name": "alice", "uid": 3001}]},
}


def inventory(folder: Path, tree: dict[str, Any]) -> Path:
    groups = {name: {"hosts": tree[name]} for name in ("head", "compute") if name in tree}
    path = folder / "hosts.yml"
    hosts = {"all": {"vars": tree["vars"], "children": {"carme": {"children": groups}}}}
    path.write_text(yaml.safe_dump(hosts))
    return path


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with the value at `a/b/c` replaced; None removes it."""
    tree = copy.deepcopy(GOOD)
    *folders, last = path.split("/")
    branch = tree
    for folder in folders:
        branch = branch[folder]
    if value is None:
        del branch[last]
    else:
        branch[last] = value
    return tree


def user(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "alice", "uid": 3001, **fields}]


WRONG = {
    "two heads": (
        "head/other",
        {"ansible_host": "10.0.0.2"},
        "exactly one host is the head, not 2",
    ),
    "no head": ("head", {}, "exactly one host is the head, not 0"),
    "no node": ("compute", {}, "group compute: no node"),
    "same address": (
        "compute/node2/ansible_host",
        "10.0.0.11",
        "10.0.0.11 is the one of node1, too",
    ),
    "loopback": ("compute/node2/ansible_host", "127.0.0.1", "is loopback"),
    "bad host name": (
        "compute/gpu_3",
        {"ansible_host": "10.0.0.13"},
        "host gpu_3: Slurm and DNS take",
    ),
    "same short name": (
        "compute/node1.b",
        {"ansible_host": "10.0.0.13"},
        "has the same short name",
    ),
    "host named as a group": (
        "compute/compute",
        {"ansible_host": "10.0.0.13"},
        "a group has the same name",
    ),
    "typing error": ("vars/slurm_partition", [], "slurm_partition: the role slurm has no such"),
    "cluster name": ("vars/common_cluster_name", "My Cluster", "'My Cluster' is no name"),
    "relative folder": ("vars/images_folder", "images", "must be an absolute path"),
    "user without uid": ("vars/common_users", [{"name": "bob"}], "bob: uid is missing"),
    "system uid": ("vars/common_users", user(uid=12), "uid 12 is the system's"),
    "user name": ("vars/common_users", user(name="Alice B"), "name must be a Unix name"),
    "system user": ("vars/common_users", user(name="slurm"), "belongs to the system"),
    "user twice": ("vars/common_users", user() + user(), "the name alice is there 2 times"),
    "open password": ("vars/common_users", user(password="secret"), "password must be a hash"),
    "unknown account": (
        "vars/common_users",
        user(account="physics"),
        "'physics' is not in slurm_accounts",
    ),
    "half a GPU": ("compute/node1/slurm_gpus", {"type": "a100"}, "{type: a100, count: 4}"),
    "GPU count": (
        "compute/node1/slurm_gpus",
        {"type": "a100", "count": 0},
        "must be a whole number from 1",
    ),
    "processors": ("compute/node1/slurm_cpus", "many", "'many' must be a whole number"),
    "unknown node": (
        "vars/slurm_partitions",
        [{"name": "p", "nodes": ["node9"], "default": True}],
        "names nodes that are not in group compute: node9",
    ),
    "no default partition": (
        "vars/slurm_partitions",
        [{"name": "p"}],
        "exactly one has default: true, not 0",
    ),
    "hours": (
        "vars/slurm_partitions",
        [{"name": "p", "default": True, "max_hours": -1}],
        "must be a number above 0",
    ),
    "wall time": (
        "vars/slurm_qos",
        [{"name": "q", "max_wall": 3600}],
        "must be [days-]hours:minutes:seconds",
    ),
    "URL": ("vars/jupyterhub_url", "hub.example.org", "must look like https://"),
    "URL without a name": ("vars/jupyterhub_url", "https://10.0.0.5", "names below the address"),
    "session host": ("vars/jupyterhub_session_host", "front", "includes the hub's own host name"),
    "half a certificate": ("vars/jupyterhub_certificate", "/etc/hostname", "set both or none"),
    "missing file": (
        "vars/apptainer_package_file",
        "/no/such.deb",
        "there is no file /no/such.deb",
    ),
    "hub as root": ("vars/jupyterhub_user", "root", "never runs as root"),
    "same port": ("vars/jupyterhub_api_port", 8001, "the same port 8001"),
    "mail from nobody": (
        "vars/alertmanager_email_to",
        "ops@example.org",
        "needs alertmanager_email_from and alertmanager_smtp_host",
    ),
    "mail server": ("vars/alertmanager_smtp_host", "mail", "'mail' must be host:port"),
    "scrape": ("vars/prometheus_scrape_seconds", 300, "must be a whole number from 1 to 60"),
    "uneven scrape": ("vars/prometheus_scrape_seconds", 40, "must divide a minute"),
    "same monitoring port": ("vars/service_port", 9090, "the same port 9090"),
    "no Grafana file": ("vars/grafana_package_file", "/no/g.deb", "there is no file /no/g.deb"),
    "mount": ("vars/shared_storage_mounts", [{"what": "x"}], "needs what, where and type"),
    "short secret": ("vars/common_secret_proxy", "abc", "must be 16 to 128"),
    "munge key": ("vars/munge_key", "short", "5 characters; Munge takes 32 to 1024"),
}


def problems(tree: dict[str, Any]) -> list[str]:
    """The problems that the playbook's filter reports for the inventory."""
    groups = {name: list(tree.get(name, {})) for name in ("head", "compute")}
    groups["carme"] = [*groups["head"], *groups["compute"]]
    hosts = {
        host: {**tree["vars"], **variables}
        for name in ("head", "compute")
        for host, variables in tree.get(name, {}).items()
    }
    spec = importlib.util.spec_from_file_location(
        "carme_inventory", PLAYBOOKS / "filter_plugins/carme_inventory.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: list[str] = module.problems(hosts, groups, str(PLAYBOOKS / "roles"))
    return messages


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_inventory_is_explained(name: str) -> None:
    path, value, message = WRONG[name]
    messages = problems(changed(path, value))
    assert any(message in problem for problem in messages), messages


def test_a_good_inventory_has_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize("name", ["two heads", "typing error", "short secret"])
def test_the_playbook_says_it_and_touches_no_host(name: str, tmp_path: Path) -> None:
    path, value, message = WRONG[name]
    result = run_playbook(inventory(tmp_path, changed(path, value)), "validate.yml", seconds=120)
    output = " ".join(result.stdout.split())
    assert result.returncode != 0
    assert message in output, output
    assert "The hosts" not in output


def test_a_good_inventory_passes(tmp_path: Path) -> None:
    arguments = ("--skip-tags", "hosts", "--limit", "node2")
    result = run_playbook(inventory(tmp_path, GOOD), "validate.yml", *arguments, seconds=120)
    assert result.returncode == 0, result.stdout
    assert "ok=1" in result.stdout
