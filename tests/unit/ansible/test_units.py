"""The units that the roles write: each runs as a user of its own and can do little else."""

import re
import runpy
from pathlib import Path

import pytest

import carme.templates
from carme.config.services import entries
from carme.templates import render

ANSIBLE = Path(__file__).resolve().parents[3] / "ansible"

FOLDER = Path(carme.templates.__file__).parent
UNITS = sorted(path.name for path in FOLDER.glob("carme-*.service"))
VALUES = {
    **dict.fromkeys(("program", "exporter", "discovery", "node"), "/opt/carme/venv/bin/x"),
    **dict.fromkeys(("config", "jupyterhub_config", "environment_file"), "/etc/carme/x"),
    **dict.fromkeys(("certificate", "key", "run", "venv"), "/x"),
    **dict.fromkeys(("session_authority", "session_identity"), "/y"),
    "address": "",
    "target": "http://10.0.0.1:8081",
    "base_url": "/",
    "host_routing": True,
    "mode": "node",
    "description": "what it does",
    "user": "carme-x",
    "port": 443,
    "api_port": 8001,
}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_confined(name: str) -> None:
    text = render(name, **VALUES)
    lines = text.splitlines()
    assert "User=carme-x" in lines
    assert any(line.startswith("CapabilityBoundingSet=") for line in lines)
    assert "ProtectControlGroups=yes" in lines
    assert "Restart=always" in lines
    if name != "carme-hub.service":  # which runs sudo
        assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes"} <= {*lines}
    assert "{" not in text


def test_every_process_of_carme_has_one() -> None:
    templates = {name.removesuffix(".service") for name in UNITS}
    units = {entry.unit for entry in entries() if entry.unit.startswith("carme-")}
    # Both kinds of exporter have one template.
    assert templates == units - {"carme-exporter-controller"}
    assert {entry.unit for entry in entries() if entry.unit and entry.restart_on_upgrade} <= units


def test_the_roles_see_the_same_services() -> None:
    path = ANSIBLE / "filter_plugins/carme_services.py"
    services = runpy.run_path(str(path))["services"]({"hub": {"user": "hubby"}}, str(ANSIBLE))
    assert [row["unit"] for row in services.values()] == [e.unit for e in entries() if e.unit]
    assert services["hub"]["user"] == "hubby"
    assert services["proxy"]["user"] == "carme-proxy"
    assert services["hub"]["health"] == "/hub/health"
    assert services["exporter_cluster"]["unit"] == "carme-exporter-controller"
    used = {
        name
        for file in ANSIBLE.rglob("*.yml")
        for name in re.findall(r"carme_services\.(\w+)\.", file.read_text())
    }
    assert {"hub", "proxy", "view", "exporter", "discovery", "service"} <= used <= set(services)


def test_a_backup_is_put_back_in_the_order_of_start() -> None:
    data = [entry.unit for entry in entries() if entry.on_restore == "stop"]
    assert data == ["slurmdbd", "slurmctld", "carme-view", "carme-hub", "carme-service"]
    assert {entry.unit for entry in entries() if entry.on_restore == "restart"} == {
        *("munge", "carme-proxy"),
    }
