"""RAPL: the energy counters of processor packages and memory, from powercap."""

import re
from pathlib import Path

from carme_monitoring import files
from carme_monitoring.collector import Collector, Stage
from carme_monitoring.energy.accountant import Zone
from carme_monitoring.metrics import metric_group
from carme_monitoring.samples import LabelledCounter, Samples

_PACKAGE = re.compile(r"intel-rapl:\d+")
_PACKAGE_PART = re.compile(r"intel-rapl:\d+:\d+")
METRICS = metric_group(
    "Power",
    ("rapl_energy_joules_total", "counter", "zone name",
     "Energy of processor packages and memory, wrap-around undone, since the start."),
)  # fmt: skip


def read(sys: Path, value_errors: LabelledCounter) -> dict[str, Zone]:
    """Packages and DRAM, by folder name.

    Other parts of a package (core, uncore) are in it already. `psys` covers the whole platform, so
    it is no component. The mmio zones repeat the packages.
    """
    zones: dict[str, Zone] = {}
    base = sys / "class/powercap"
    for name in files.names(base):
        if not _PACKAGE.fullmatch(name) and not _PACKAGE_PART.fullmatch(name):
            continue
        title = files.word(base / name / "name")
        component = "dram" if title == "dram" else "cpu" if title.startswith("package") else ""
        if not component:
            continue
        value = files.number(base / name / "energy_uj")
        if value is None or value < 0:  # readable by root only since 2020: grant the group
            value_errors.add(("rapl", name))
            continue
        span = files.number(base / name / "max_energy_range_uj")
        zones[name] = Zone(value, span if span and span > 0 else None, component, title)
    return zones


class RaplCollector(Collector[dict[str, Zone]]):
    """Energy of processors and memory."""

    name, metrics = "rapl", METRICS
    stage, order = Stage.COUNTERS, 2

    def read(self) -> dict[str, Zone]:
        return read(self.context.roots.sys, self.context.value_errors)

    def add_samples(self, out: Samples, zones: dict[str, Zone]) -> None:
        for name, zone in zones.items():
            joules = round(zone.total_uj / 1e6, 3)
            out.add("carme_rapl_energy_joules_total", (name, zone.title), joules)
