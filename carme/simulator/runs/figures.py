"""The figures by which runs are compared: the one table of names, titles and units."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from carme.simulator.runs.result import JOULES_PER_KWH, SimulationResult

FigureName = Literal["time", "energy", "gpu_energy", "power", "emissions"]


class Figure(NamedTuple):
    """A figure of a run; less is better."""

    title: str
    attribute: str
    """Of SimulationResult."""
    unit: str
    """Of the attribute."""
    axis_unit: str
    axis_scale: float
    """How many of `unit` are one `axis_unit`."""

    @property
    def axis_title(self) -> str:
        """The title with its unit, for the axis of a plot."""
        return f"{self.title} ({self.axis_unit})"


FIGURES: dict[FigureName, Figure] = {
    "time": Figure("time", "seconds", "s", "h", 3600.0),
    "energy": Figure("charged energy", "node_joules", "J", "kWh", JOULES_PER_KWH),
    "gpu_energy": Figure("GPU energy", "gpu_joules", "J", "kWh", JOULES_PER_KWH),
    "power": Figure("charged power", "average_node_watts", "W", "kW", 1000.0),
    "emissions": Figure("emissions", "grams_co2", "g CO2e", "kg CO₂e", 1000.0),
}


def figures_of(result: SimulationResult) -> dict[str, Any]:
    """The figures of a result by name."""
    return {name: getattr(result, figure.attribute) for name, figure in FIGURES.items()}
