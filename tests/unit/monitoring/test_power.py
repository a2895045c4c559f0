"""Node power: hwmon, IPMI, Redfish; the best is chosen and named."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carme_monitoring.collectors.power import (
    NodePower,
    PowerReading,
    SlowReader,
    add_samples,
    ask_ipmi,
    ask_redfish,
    parse_dcmi,
    parse_redfish,
)
from carme_monitoring.samples import Samples

IPMITOOL = """
    Instantaneous power reading:                   384 Watts
    Minimum during sampling period:                 24 Watts
"""
FREEIPMI = "Current Power                        : 412 Watts\n"


@pytest.mark.parametrize(
    ("text", "watts"),
    [(IPMITOOL, 384), (FREEIPMI, 412), ("", None), ("reading: 0 Watts", None),
     ("Instantaneous power reading: 99999999 Watts", None), ("\xff", None)],
)  # fmt: skip
def test_dcmi(text: str, watts: float | None) -> None:
    assert parse_dcmi(text) == watts


@pytest.mark.parametrize(
    ("document", "watts"),
    [
        ({"PowerControl": [{"PowerConsumedWatts": 344}]}, 344),
        ({"PowerWatts": {"Reading": 120.5}}, 120.5),
        ({"PowerControl": [{"PowerConsumedWatts": None}]}, None),
        ({"PowerControl": {}}, None),
        ([], None),
        ({}, None),
    ],
)
def test_redfish(document: Any, watts: float | None) -> None:
    assert parse_redfish(document) == watts


def test_a_redfish_address_that_is_none() -> None:
    assert ask_redfish("file:///etc/passwd", "", "", None) is None
    assert ask_redfish("http://127.0.0.1:1/redfish", "u", "p", None) is None


def test_ipmi_tries_both_tools() -> None:
    asked = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        if command[0] == "ipmitool":
            raise FileNotFoundError
        return subprocess.CompletedProcess(command, 0, FREEIPMI, "")

    assert ask_ipmi(run) == 412
    assert asked == ["ipmitool", "ipmi-dcmi"]


def test_the_best_source_is_named_and_a_slow_one_never_waited_for(tmp_path: Path) -> None:
    def slowly() -> float | None:
        time.sleep(0.2)
        return 500.0

    reader = SlowReader("ipmi", slowly)
    reader.start()
    power = NodePower(tmp_path, [reader])
    began = time.monotonic()
    assert power.read() == []
    assert time.monotonic() - began < 0.1
    time.sleep(0.4)
    assert power.read() == [PowerReading("ipmi", 500.0)]
    sensor = tmp_path / "class/hwmon/hwmon3"
    sensor.mkdir(parents=True)
    (sensor / "name").write_text("power_meter\n")
    (sensor / "power1_input").write_text("450000000\n")
    out = Samples()
    add_samples(out, power.read())
    assert out.families["carme_node_power_watts"] == {("hwmon",): 450, ("ipmi",): 500}
    assert list(out.families["carme_power_source_info"]) == [("hwmon",)]
    reader.stop()


def test_what_was_heard_too_long_ago_is_not_said_again() -> None:
    now = [0.0]
    reader = SlowReader("redfish", lambda: 5.0, every_seconds=10, now=lambda: now[0])
    reader._latest = (300.0, 0.0)
    assert reader.latest() == PowerReading("redfish", 300.0)
    now[0] = 41
    assert reader.latest() is None
