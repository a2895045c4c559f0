"""The node's power (hwmon, Redfish, IPMI), and the energy counters of its CPUs (RAPL).

hwmon and RAPL are files of the kernel. Redfish and IPMI take seconds to answer, so a thread polls
them, and a collection uses the thread's last reading.
"""

import base64
import http.client
import json
import logging
import re
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.errors import ConfigError, MissingError, UnavailableError
from carme.system.programs import CommandResult, execute
from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector, Stage
from carme_monitoring.energy.accountant import RaplZone
from carme_monitoring.guard import PartialReading
from carme_monitoring.metrics import LabelledCounter, Samples, metric_group
from carme_monitoring.periodic_thread import PeriodicThread

log = logging.getLogger(__name__)
_DCMI = re.compile(
    r"Instantaneous power reading:\s+(\d+)\s+Watts|Current Power\s*:\s*(\d+)\s+Watts"
)
_MAX_WATTS = 50_000
_NODE_SENSORS = ("power_meter", "acpi_power_meter", "ibmpowernv", "xgene_hwmon")
"""hwmon drivers whose power1 is the machine; others measure a part of it (a GPU, a battery)."""
IPMI_COMMANDS = (
    ["ipmitool", "dcmi", "power", "reading"],
    ["ipmi-dcmi", "--get-system-power-statistics"],
)
_RAPL_ZONE = re.compile(r"intel-rapl:\d+(?::\d+)?")
"""Packages and their parts; the names of other zones differ."""
METRICS = metric_group(
    "Power",
    ("node_power_watts", "gauge", "source", "Power of the whole node, according to the source."),
    ("power_source_info", "info", "source", "The source of node power in use; always 1."),
)  # fmt: skip


@dataclass(frozen=True)
class PowerReading:
    """A reading of node power. A source with a counter gives energy too."""

    source: str
    watts: float | None = None
    energy_uj: int | None = None


def hwmon(sys: Path) -> PowerReading | None:
    """The board's own sensor."""
    for folder in kernel_files.folders(sys / "class/hwmon"):
        if kernel_files.stripped_text(folder / "name") not in _NODE_SENSORS:
            continue
        energy = kernel_files.number(folder / "energy1_input")
        for name in ("power1_average", "power1_input"):
            watts = kernel_files.number(folder / name)
            if watts is not None and 0 < watts / 1e6 < _MAX_WATTS:
                return PowerReading("hwmon", watts / 1e6, energy)
    return None


def parse_dcmi(text: str) -> float | None:
    """Watts in the output of ipmitool or ipmi-dcmi."""
    match = _DCMI.search(text)
    watts = float(match[1] or match[2]) if match else None
    return watts if watts is not None and 0 < watts < _MAX_WATTS else None


def parse_redfish(document: Any) -> float | None:
    """Watts in a Redfish Power or EnvironmentMetrics resource; the first control counts."""
    if not isinstance(document, dict):
        return None
    reading = document.get("PowerWatts")
    if isinstance(reading, dict) and isinstance(reading.get("Reading"), int | float):
        return float(reading["Reading"])
    controls = document.get("PowerControl")
    if not isinstance(controls, list):
        return None
    watts = [
        float(entry["PowerConsumedWatts"])
        for entry in controls
        if isinstance(entry, dict) and isinstance(entry.get("PowerConsumedWatts"), int | float)
    ]
    return watts[0] if watts and 0 < watts[0] < _MAX_WATTS else None


def read_ipmi(run: Callable[..., CommandResult] = execute) -> float | None:
    """Watts from ipmitool or ipmi-dcmi, the first that gives them."""
    for command in IPMI_COMMANDS:
        try:
            result = run(command, timeout_seconds=10)
        except (MissingError, UnavailableError):
            continue
        if (watts := parse_dcmi(result.stdout)) is not None:
            return watts
    return None


def read_redfish(url: str, user: str, password: str, ca_file: Path | None) -> float | None:
    """Watts from the node's management controller."""
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"exporter.redfish: {url} is no web address", "begin it with https://")
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})  # noqa: S310
    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return parse_redfish(json.load(answer))
    except (OSError, ValueError, http.client.HTTPException) as error:
        # The error about a missing file of certificates does not name the file.
        using = f" (certificates: {ca_file})" if ca_file else ""
        raise UnavailableError(f"{url}: {error or type(error).__name__}{using}") from error


class PowerPoller(PeriodicThread):
    """Reads a slow source in a thread of its own; `latest` never waits."""

    def __init__(
        self,
        source: str,
        ask: Callable[[], float | None],
        every_seconds: float = 10,
        now: Callable[[], float] = time.monotonic,
        errors: LabelledCounter | None = None,
    ) -> None:
        super().__init__(source)
        self.source = source
        self._ask, self._every, self._now = ask, every_seconds, now
        self._errors = errors if errors is not None else LabelledCounter()
        self._latest: tuple[float, float] | None = None
        self._heard_at: float | None = None
        """When it last answered; at first, when it was first asked."""
        self._problem = ""

    def period_seconds(self) -> float:
        return self._every

    def latest(self) -> PowerReading | None:
        """The last reading; None when it is too old."""
        if self._latest is None or self._is_long_ago(self._latest[1]):
            return None
        return PowerReading(self.source, self._latest[0])

    def problem(self) -> str:
        """Why there has been no reading for long; empty when there has been one."""
        if self._heard_at is None or not self._is_long_ago(self._heard_at):
            return ""
        silent = self._now() - self._heard_at
        return f"{self.source}: no answer for {silent:.0f} s: {self._problem or 'it hangs'}"

    def step(self) -> None:
        """Read once. A failure is counted, and the next read is tried as usual."""
        if self._heard_at is None:
            self._heard_at = self._now()
        try:
            watts = self._ask()
            problem = "" if watts is not None else "no power reading in the answer"
        except Exception as error:  # a controller may answer anything
            watts, problem = None, str(error) or type(error).__name__
        if watts is not None:
            self._heard_at = self._now()
            self._latest = (watts, self._heard_at)
        else:
            self._errors.add(("power", self.source))
            if not self._problem:
                log.warning("power from %s: %s", self.source, problem)
        self._problem = problem

    def _is_long_ago(self, moment: float) -> bool:
        return self._now() - moment > 3 * self._every + 10


class PowerCollector(Collector[list[PowerReading]]):
    """The node's power from every source: hwmon, then Redfish, then IPMI.

    The first is the best and is what energy is charged by: hwmon has no lag, Redfish more digits
    than IPMI.
    """

    name, metrics = "power", METRICS
    stage, order = Stage.CHARGED, 1

    def read(self) -> list[PowerReading]:
        """The sources that answer, best first; a failure if one has not answered for long."""
        slow = self.context.power_pollers
        sources = [hwmon(self.context.roots.sys), *(reader.latest() for reader in slow)]
        readings = [reading for reading in sources if reading]
        if problems := [problem for reader in slow if (problem := reader.problem())]:
            raise PartialReading("; ".join(problems), readings)
        return readings

    def add_samples(self, out: Samples, readings: list[PowerReading]) -> None:
        """Every source's watts, and which one is used."""
        for reading in readings:
            out.add("carme_node_power_watts", (reading.source,), reading.watts)
        if readings:
            out.add("carme_power_source_info", (readings[0].source,), 1)


def read_rapl(sys: Path, value_errors: LabelledCounter) -> dict[str, RaplZone]:
    """Packages and DRAM, by folder name.

    Other parts of a package (core, uncore) are in it already. `psys` covers the whole platform, so
    it is no component. The mmio zones repeat the packages.
    """
    zones: dict[str, RaplZone] = {}
    base = sys / "class/powercap"
    for name in kernel_files.names(base):
        if not _RAPL_ZONE.fullmatch(name):
            continue
        title = kernel_files.stripped_text(base / name / "name")
        component = "dram" if title == "dram" else "cpu" if title.startswith("package") else ""
        if not component:
            continue
        value = kernel_files.number(base / name / "energy_uj")
        if value is None or value < 0:  # readable by root only since 2020: grant the group
            value_errors.add(("rapl", name))
            continue
        span = kernel_files.number(base / name / "max_energy_range_uj")
        zones[name] = RaplZone(value, span if span and span > 0 else None, component, title)
    return zones


class RaplCollector(Collector[dict[str, RaplZone]]):
    """Energy of CPUs and memory."""

    name = "rapl"
    metrics = metric_group(
        "Power",
        ("rapl_energy_joules_total", "counter", "zone name",
         "Energy of CPU packages and memory, wrap-around undone, since the start."),
    )  # fmt: skip
    stage, order = Stage.COUNTERS, 2

    def read(self) -> dict[str, RaplZone]:
        return read_rapl(self.context.roots.sys, self.context.value_errors)

    def add_samples(self, out: Samples, zones: dict[str, RaplZone]) -> None:
        for name, zone in zones.items():
            joules = round(zone.total_uj / 1e6, 3)
            out.add("carme_rapl_energy_joules_total", (name, zone.title), joules)
