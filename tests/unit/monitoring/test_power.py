"""Node power: hwmon, IPMI, Redfish; the best is chosen and named."""

import socket
import threading
import time
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from carme.errors import ConfigError, MissingError, UnavailableError
from carme.system.programs import CommandResult
from carme_monitoring.collector import CollectorContext, Roots
from carme_monitoring.collectors.power import (
    PowerCollector,
    PowerPoller,
    PowerReading,
    parse_dcmi,
    parse_redfish,
    read_ipmi,
    read_redfish,
)
from carme_monitoring.metrics import LabelledCounter, Samples
from carme_monitoring.pipeline import NodePipeline

from .conftest import World

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


def _answering(answer: bytes) -> str:
    """The address of a management controller that says `answer` to the first who asks."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as client:
            client.recv(65536)
            client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/redfish"


def test_redfish_is_read() -> None:
    body = b'{"PowerControl": [{"PowerConsumedWatts": 344}]}'
    url = _answering(b"HTTP/1.0 200 OK\r\n\r\n" + body)
    assert read_redfish(url, "u", "p", None) == 344


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x00\x01nonsense\r\n\r\n", b"HTTP/1.0 500 Oops\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n{",
     b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"PowerControl"',
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"],
)  # fmt: skip
def test_a_controller_that_answers_nonsense_is_unavailable(answer: bytes) -> None:
    with pytest.raises(UnavailableError, match=r"redfish: ."):
        read_redfish(_answering(answer), "u", "p", None)


def test_redfish_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no web address"):
        read_redfish("file:///etc/passwd", "", "", None)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        read_redfish("http://127.0.0.1:1/redfish", "u", "p", None)
    with pytest.raises(UnavailableError, match=r"none\.pem"):
        read_redfish("https://127.0.0.1:1/redfish", "u", "p", tmp_path / "none.pem")


def test_ipmi_tries_both_tools() -> None:
    asked = []

    def run(command: list[str], **_: Any) -> CommandResult:
        asked.append(command[0])
        if command[0] == "ipmitool":
            raise MissingError("no program ipmitool")
        return CommandResult(FREEIPMI, "", 0)

    assert read_ipmi(run) == 412
    assert asked == ["ipmitool", "ipmi-dcmi"]


def test_the_best_source_is_named_and_a_slow_one_never_waited_for(tmp_path: Path) -> None:
    def slowly() -> float | None:
        time.sleep(0.2)
        return 500.0

    reader = PowerPoller("ipmi", slowly)
    reader.start()
    power = PowerCollector(CollectorContext(roots=Roots(sys=tmp_path), power_pollers=[reader]))
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
    power.add_samples(out, power.read())
    assert out.families["carme_node_power_watts"] == {("hwmon",): 450, ("ipmi",): 500}
    assert list(out.families["carme_power_source_info"]) == [("hwmon",)]
    reader.stop()


def test_a_reading_that_is_too_old_is_not_used() -> None:
    now = [0.0]
    reader = PowerPoller("redfish", lambda: 5.0, every_seconds=10, now=lambda: now[0])
    reader._latest = (300.0, 0.0)
    assert reader.latest() == PowerReading("redfish", 300.0)
    now[0] = 41
    assert reader.latest() is None


def test_a_poller_continues_after_any_answer() -> None:
    asked = threading.Semaphore(0)
    answers = iter([IncompleteRead(b"{"), None, 250.0])

    def ask() -> float | None:
        asked.release()
        answer = next(answers, 250.0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    errors = LabelledCounter()
    reader = PowerPoller("redfish", ask, every_seconds=0.01, errors=errors)
    reader.start()
    assert all(asked.acquire(timeout=30) for _ in range(4))
    assert reader.latest() == PowerReading("redfish", 250.0)
    assert errors.values == {("power", "redfish"): 2}
    reader.stop()


def test_a_poller_that_fails_for_long_fails_its_collector(world: World) -> None:
    now, broken = [0.0], [True]

    def ask() -> float | None:
        if broken[0]:
            raise UnavailableError("https://bmc: timed out")
        return 400.0

    reader = PowerPoller("redfish", ask, every_seconds=10, now=lambda: now[0])
    exporter = NodePipeline(replace(world.context(), power_pollers=[reader]), world.guards)

    def success(at: float) -> float | None:
        now[0] = at
        reader.step()
        samples = exporter.collect()
        assert samples.value("carme_node_power_watts", "hwmon") == 600
        return samples.value("carme_collector_success", "power")

    assert success(0) == 1
    assert success(41) == 0
    assert world.guards.errors()["power"].endswith("no answer for 41 s: https://bmc: timed out")
    broken[0] = False
    assert success(51) == 1
