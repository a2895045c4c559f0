"""The Pareto view as one HTML file that needs no network: hovering shows what varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from carme.errors import ConfigError, MissingError
from carme.simulator.analysis.suite import Outcome
from carme.units import format_duration, format_joules

AXES = {
    "time": ("time (h)", 3600.0),
    "power": ("mean node power (kW)", 1000.0),
    "energy": ("node energy (kWh)", 3.6e6),
    "gpu_energy": ("GPU energy (kWh)", 3.6e6),
    "emissions": ("emissions (kg CO₂e)", 1000.0),
}


def write_page(
    path: Path,
    outcomes: list[Outcome],
    best: list[Outcome],
    objectives: list[str],
    varied: list[str],
    title: str,
) -> None:
    """Write the page; the first two objectives are the axes, the first parameter the colour."""
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError:
        raise MissingError("the HTML page needs Plotly", "pip install 'carme[service]'") from None
    x, y = objectives[0], objectives[1] if len(objectives) > 1 else "energy"
    good = [o for o in outcomes if not o.error]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=_axis(best, x), y=_axis(best, y), mode="lines", name="front",
            line={"color": "#c44", "width": 2, "shape": "hv"}, hoverinfo="skip",
        )
    )  # fmt: skip
    colours, bar = _colours(good, varied[0])
    figure.add_trace(
        go.Scatter(
            x=_axis(good, x), y=_axis(good, y), mode="markers", name="points",
            marker={"size": 9, "color": colours, "line": {"width": 1, "color": "#fff"}, **bar},
            text=[_hover(o, varied) for o in good], hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=_axis(best, x), y=_axis(best, y), mode="markers", name="on the front",
            marker={"size": 14, "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "#c44"}},
            hoverinfo="skip",
        )
    )  # fmt: skip
    figure.update_layout(
        title=f"{title}: {len(good)} choices, {len(best)} that no other beats",
        template="plotly_white",
        xaxis_title=AXES[x][0],
        yaxis_title=AXES[y][0],
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False})
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _axis(outcomes: list[Outcome], name: str) -> list[float]:
    return [outcome.figures[name] / AXES[name][1] for outcome in outcomes]


def _colours(outcomes: list[Outcome], name: str) -> tuple[list[Any], dict[str, Any]]:
    """Numbers get a colour bar; words get a number each."""
    values = [outcome.point[name] for outcome in outcomes]
    if all(isinstance(value, int | float) for value in values):
        return values, {"colorscale": "Viridis", "colorbar": {"title": name}}
    categories = sorted({str(value) for value in values})
    ticks = {"tickvals": list(range(len(categories))), "ticktext": categories, "title": name}
    return [categories.index(str(v)) for v in values], {"colorscale": "Viridis", "colorbar": ticks}


def _hover(outcome: Outcome, varied: list[str]) -> str:
    figures = outcome.figures
    lines = [f"<b>{name} = {outcome.point[name]}</b>" for name in varied]
    lines += [
        f"time {format_duration(figures['time'])}",
        f"node energy {format_joules(figures['energy'])}",
        f"GPU energy {format_joules(figures['gpu_energy'])}",
        f"mean node power {figures['power']:.0f} W",
        f"emissions {figures['emissions'] / 1000:.3g} kg CO₂e",
    ]
    return "<br>".join(lines)
