"""The units that the roles write: each runs as a user of its own and can do little else."""

from pathlib import Path

import pytest

import carme.templates
from carme.templates import render

FOLDER = Path(carme.templates.__file__).parent
UNITS = sorted(path.name for path in FOLDER.glob("carme-*.service"))
VALUES = {
    **dict.fromkeys(("program", "exporter", "discovery", "node"), "/opt/carme/venv/bin/x"),
    **dict.fromkeys(("config", "jupyterhub_config", "environment_file"), "/etc/carme/x"),
    **dict.fromkeys(("certificate", "key", "run", "venv"), "/x"),
    "address": "",
    "target": "http://10.0.0.1:8081",
    "mode": "node",
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
    names = {name.removeprefix("carme-").removesuffix(".service") for name in UNITS}
    assert names == {"discovery", "exporter", "hub", "proxy", "service", "view"}
