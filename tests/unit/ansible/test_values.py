"""What the roles' variables become for a site, as Ansible itself evaluates them."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from carme.helper.models import VERBS
from carme.templates import render

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = ROOT / "ansible"
GROUPS = {
    "head": {"hosts": {"front": {"ansible_host": "10.0.0.1", "ansible_connection": "local"}}},
    "compute": {"hosts": {"node1": {"ansible_host": "10.0.0.11"}}},
}
Evaluate = Callable[..., Any]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """`evaluate(expression, **variables)`: its value on the head of a site with these variables."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"children": {"carme": {"children": GROUPS}}}}))
    roles = [*ANSIBLE.glob("roles/*/defaults/main.yml"), *ANSIBLE.glob("roles/*/vars/main.yml")]

    def value(expression: str, **variables: Any) -> Any:
        given = [f"@{path}" for path in roles] + [json.dumps(variables)]
        argv = [str(Path(sys.executable).with_name("ansible")), "front", f"--inventory={hosts}"]
        argv += [f"--playbook-dir={ANSIBLE}", "--module-name=ansible.builtin.debug"]
        argv += [f"--extra-vars={text}" for text in given]
        done = subprocess.run(
            [*argv, "--args", json.dumps({"msg": f"{{{{ {expression} }}}}"})],
            env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.partition("=>")[2])["msg"]

    return value


@pytest.mark.parametrize(("path", "base_url"), [("", "/"), ("/jupyter", "/jupyter/")])
def test_the_proxy_s_error_pages_are_below_the_path_of_the_hub(
    evaluate: Evaluate, path: str, base_url: str
) -> None:
    url = f"https://hpc.example{path}"
    unit = render("carme-proxy.service", **evaluate("jupyterhub_proxy_unit", jupyterhub_url=url))
    assert f" --error-target http://10.0.0.1:8081{base_url}hub/error --ssl-cert" in unit
    assert " --default-target http://10.0.0.1:8081 --error-target" in unit
    health = evaluate("carme_services.proxy.health", jupyterhub_url=url)
    assert health == f"{base_url}hub/health"


def test_a_restored_file_belongs_to_the_user_of_its_service(evaluate: Evaluate) -> None:
    toml = b'[hub]\nuser = "hubby"\n[service]\nuser = "oracle"\n'
    [play, _] = yaml.safe_load((ANSIBLE / "restore.yml").read_text())
    variables = play["vars"] | {"restore_carme_toml": {"content": base64.b64encode(toml).decode()}}
    databases = evaluate("restore_databases", **variables)
    assert databases == {
        "hub.sqlite": {"folder": "/var/lib/carme", "owner": "hubby"},
        "cookie_secret": {"folder": "/var/lib/carme", "owner": "hubby"},
        "session-authority.pem": {"folder": "/var/lib/carme", "owner": "hubby"},
        "service.sqlite": {"folder": "/var/lib/carme-service", "owner": "oracle"},
    }
    files = evaluate("restore_files", **variables)
    owners = {row["from"]: (row["owner"], row.get("group", row["owner"])) for row in files}
    assert owners == {
        "slurm-state/": ("slurm", "slurm"),
        "etc/carme/secrets/": ("root", "root"),
        "etc/carme/tls/": ("root", "carme-proxy"),
        "etc/munge.key": ("munge", "munge"),
    }
    owned = [task[module]["owner"] for task in play["tasks"] for module in task if "copy" in module]
    assert owned == ["{{ item.owner }}", "{{ restore_target.owner }}"]


def test_the_readers_of_the_view_are_the_users_of_the_services(evaluate: Evaluate) -> None:
    settings = {"service": {"user": "oracle"}}
    expression, site = "carme_toml.view.readers", {"carme_settings": settings}
    assert evaluate(expression, **site, jupyterhub_user="hubby") == [
        *("hubby", "carme-exporter", "oracle"),
    ]


def test_pip_installs_the_tested_versions_by_default(evaluate: Evaluate) -> None:
    assert Path(evaluate("carme_constraints")).resolve() == ROOT / "constraints.txt"
    tasks = yaml.safe_load((ANSIBLE / "roles/carme/tasks/install.yml").read_text())
    by_name = {task["name"]: task for task in tasks}
    copy = by_name["Copy pip's constraints"]["ansible.builtin.copy"]
    assert copy["src"] == "{{ carme_constraints }}"
    install = by_name["Install Carme and its dependencies"]
    assert "extra_args" not in install["ansible.builtin.pip"], "check mode would report a change"
    expression = install["environment"]["PIP_CONSTRAINT"].removeprefix("{{ ").removesuffix(" }}")
    assert evaluate(expression) == evaluate("dest", dest=copy["dest"])
    assert evaluate(expression, carme_constraints="") == ""


def test_the_sudo_rule_allows_the_helper_s_verbs(evaluate: Evaluate) -> None:
    values = evaluate("jupyterhub_sudoers")
    assert values["verbs"] == list(VERBS)
    rule = render("sudoers", **values)
    for verb in VERBS:
        assert f"/opt/carme/venv/bin/carme-helper --config /etc/carme/carme.toml {verb}" in rule


def test_the_roles_wait_where_the_inventory_of_services_says() -> None:
    for path in ANSIBLE.glob("roles/*/tasks/wait_healthy.yml"):
        for task in yaml.safe_load(path.read_text()):
            assert ".health }}" in task["ansible.builtin.uri"]["url"], path
