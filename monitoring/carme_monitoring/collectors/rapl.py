"""RAPL: the energy counters of processor packages and memory, from powercap."""

import re
from collections.abc import Mapping
from pathlib import Path

from carme_monitoring import files
from carme_monitoring.energy.accountant import Zone
from carme_monitoring.samples import LabelledCounter, Samples

_TOP = re.compile(r"intel-rapl(?:-mmio)?:\d+")
_PART = re.compile(r"intel-rapl:\d+:\d+")


class Rapl:
    """Packages and DRAM. Parts of a package (core, uncore) are in it already and left out.

    `psys` covers the whole platform, so it is no component. The mmio zones repeat the packages.
    """

    def __init__(self, errors: LabelledCounter, sys: Path = Path("/sys")) -> None:
        self._base, self._errors = sys / "class/powercap", errors

    def read(self) -> dict[str, Zone]:
        """The zones that count, by folder name."""
        found: dict[str, Zone] = {}
        for name in files.names(self._base):
            is_part = _PART.fullmatch(name)
            if not is_part and not (_TOP.fullmatch(name) and "mmio" not in name):
                continue
            title = files.word(self._base / name / "name")
            component = "dram" if title == "dram" else "cpu" if title.startswith("package") else ""
            if not component:
                continue
            value = files.number(self._base / name / "energy_uj")
            if value is None or value < 0:  # readable by root only since 2020: grant the group
                self._errors.add(("rapl", name))
                continue
            span = files.number(self._base / name / "max_energy_range_uj")
            found[name] = Zone(value, span if span and span > 0 else None, component)
        return found

    def names(self) -> Mapping[str, str]:
        """Zone → its name, for people."""
        return {name: files.word(self._base / name / "name") for name in self.read()}


class RaplTotals:
    """The zones' energy without wrap-arounds, for the metric."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[int, int]] = {}
        """Zone → (last raw value, total since the start)."""

    def update(self, zones: Mapping[str, Zone]) -> None:
        """Count what the zones gained."""
        for name, zone in zones.items():
            last, total = self.values.get(name, (zone.uj, 0))
            gained = zone.uj - last
            if gained < 0:
                gained = gained + zone.range_uj if zone.range_uj else zone.uj
            self.values[name] = (zone.uj, total + max(0, gained))

    def add_samples(self, out: Samples, names: Mapping[str, str]) -> None:
        """One sample a zone."""
        for zone, (_, total) in self.values.items():
            key = (zone, names.get(zone, ""))
            out.add("carme_rapl_energy_joules_total", key, round(total / 1e6, 3))
