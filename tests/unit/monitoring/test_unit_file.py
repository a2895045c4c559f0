"""The unit file that runs the exporter on a node and on the controller."""

import pytest

from carme.templates import render


@pytest.mark.parametrize("mode", ["node", "controller"])
def test_it_renders_and_asks_for_little(mode: str) -> None:
    text = render(
        "carme-exporter.service",
        exporter="/opt/carme/venv/bin/carme-exporter",
        config="/etc/carme/carme.toml",
        run="/run/carme",
        user="carme-exporter",
        description="measures gpu01",
        mode=mode,
    )
    lines = text.splitlines()
    assert (
        f"ExecStart=/opt/carme/venv/bin/carme-exporter --config /etc/carme/carme.toml --mode {mode}"
        in lines
    )
    assert "User=carme-exporter" in lines
    assert "NoNewPrivileges=yes" in lines
    [bounded] = [line for line in lines if line.startswith("CapabilityBoundingSet=")]
    assert bounded.endswith("CAP_DAC_READ_SEARCH" if mode == "node" else "=")
    assert "{" not in text
