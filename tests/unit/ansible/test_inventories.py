"""The example inventories are right, and the roles' interface is documented."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from carme.slurm.states import NodeAvailability, node_availability

ANSIBLE = Path(__file__).resolve().parents[3] / "ansible"


def _filter() -> Any:
    path = ANSIBLE / "filter_plugins/carme_inventory.py"
    spec = importlib.util.spec_from_file_location("carme_inventory", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["example", "single"])
def test_the_example_inventories_have_no_problem(name: str) -> None:
    folder = ANSIBLE / "inventories" / name
    common = yaml.safe_load((folder / "group_vars/all.yml").read_text())
    children = yaml.safe_load((folder / "hosts.yml").read_text())["carme"]["children"]
    groups = {group: list(content["hosts"]) for group, content in children.items()}
    hosts: dict[str, dict[str, Any]] = {}
    for content in children.values():
        for host, variables in content["hosts"].items():
            hosts[host] = {**common, **hosts.get(host, {}), **(variables or {})}
    groups["carme"] = list(hosts)
    assert _filter().problems(hosts, groups, str(ANSIBLE / "roles")) == []


def test_a_variable_that_no_role_has_is_named_with_those_that_it_has() -> None:
    hosts = {"h1": {"grafana_prot": 3001}, "n1": {}}
    groups = {"carme": ["h1", "n1"], "head": ["h1"], "compute": ["n1"]}
    problems = _filter().problems(hosts, groups, str(ANSIBLE / "roles"))
    (typo,) = (problem for problem in problems if problem.startswith("grafana_prot: "))
    defaults = yaml.safe_load((ANSIBLE / "roles/grafana/defaults/main.yml").read_text())
    assert typo.endswith(f"it has {', '.join(sorted(defaults))}")


def test_the_roles_name_the_tree_of_carme_toml_as_it_is_called() -> None:
    variables = yaml.safe_load((ANSIBLE / "roles/carme/vars/main.yml").read_text())
    named = {
        match[1]
        for path in (ANSIBLE / "roles").glob("*/*/*")
        if path.suffix in (".yml", ".j2")
        for match in re.finditer(
            r"(?<![\w./-])(carme_[a-z_]+)\.(?:hub|prometheus|alerts|service|cluster)\b",
            path.read_text(),
        )
    }
    assert named - {"carme_services"} == {"carme_toml"}
    assert "carme_toml" in variables


@pytest.mark.parametrize("role", sorted(path.name for path in (ANSIBLE / "roles").iterdir()))
def test_every_variable_of_a_role_is_in_its_argument_specs(role: str) -> None:
    folder = ANSIBLE / "roles" / role
    defaults = yaml.safe_load((folder / "defaults/main.yml").read_text())
    specs = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())
    assert list(specs["argument_specs"]["main"]["options"]) == list(defaults)
    assert all(name.startswith(f"{role}_") for name in defaults)


def problems(**variables: Any) -> list[str]:
    groups = {"carme": ["h1", "n1"], "head": ["h1"], "compute": ["n1"]}
    found: list[str] = _filter().problems(
        {"h1": variables, "n1": {}}, groups, str(ANSIBLE / "roles")
    )
    return found


def test_the_hub_may_be_below_a_path() -> None:
    assert problems(jupyterhub_url="https://hpc.example.org/jupyter") == []


def test_nobody_is_called_like_a_user_of_a_service() -> None:
    people = [{"name": "hubby", "uid": 3001}, {"name": "carme", "uid": 3002}]
    [problem] = problems(jupyterhub_user="hubby", common_users=people)
    assert problem.startswith("common_users: hubby: this name belongs to the system")


@pytest.mark.parametrize("state", ["down*", "drained", "fail", "inval", "error", "idle", "mixed"])
def test_a_node_that_takes_no_jobs_is_told_of(state: str) -> None:
    tasks = yaml.safe_load((ANSIBLE / "roles/slurm/tasks/wait_for_nodes.yml").read_text())
    found = re.fullmatch(r"slurm_state\.stdout is search\('(.+)'\)", tasks[-1]["when"])
    assert found
    is_open = node_availability(state) is NodeAvailability.OPEN
    assert is_open == (state in ("idle", "mixed"))
    assert bool(re.search(found[1], state)) == (not is_open)
