"""`carme pareto`: simulates many points and shows the Pareto front, also as one HTML file that
needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from carme.errors import InputError, MissingError
from carme.library.suite_runner import Suite, run_suite
from carme.simulator.analysis.search import (
    ExhaustiveSearch,
    Outcome,
    RandomSearch,
    grid_points,
    pareto_front,
)
from carme.simulator.commands.options import (
    print_wide,
    progress_bar,
    simulation_inputs,
    simulation_options,
    write_file,
)
from carme.simulator.runs.figures import FIGURES, Figure
from carme.units import format_duration, format_emissions, format_joules, format_watts

OBJECTIVES: dict[str, Figure] = {str(name): figure for name, figure in FIGURES.items()}
_FORMATS: dict[str, Callable[[float], str]] = {
    "s": format_duration,
    "J": format_joules,
    "W": format_watts,
    "g CO2e": format_emissions,
}
_RANGE = re.compile(r"(-?[\d.]+):(-?[\d.]+)(?::([\d.]+))?")


@click.command()
@click.argument("name", metavar="WORKLOAD")
@simulation_options
@click.option(
    "--vary", "vary", multiple=True, required=True, metavar="NAME=VALUES",
    help="A plan's field, or gpu; values as 1,2,4 or first:last:step. Repeat for more.",
)  # fmt: skip
@click.option(
    "--objectives", default="time,energy", show_default=True, help=f"Of {', '.join(OBJECTIVES)}."
)
@click.option(
    "--keep", multiple=True, metavar="FIGURE=LOW:HIGH", help="Only points with a figure in a range."
)
@click.option(
    "--random",
    "random_count",
    type=click.IntRange(1),
    help="Number of random points, instead of all.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes."
)
@click.option(
    "--store", type=click.Path(path_type=Path), help="Store results here, and resume from them."
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write the page where hovering shows what varies.",
)
@click.option("--all", "show_all", is_flag=True, help="List every point, not only the front.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def pareto(
    name: str,
    vary: tuple[str, ...],
    objectives: str,
    keep: tuple[str, ...],
    random_count: int | None,
    jobs: int,
    store: Path | None,
    html: Path | None,
    show_all: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate WORKLOAD over ranges of parameters and show the Pareto front."""
    axes = [name.strip().replace("-", "_") for name in objectives.split(",") if name.strip()]
    unknown = [name for name in axes if name not in OBJECTIVES]
    if unknown or not axes:
        unknown_text = ", ".join(unknown) or repr(objectives)
        raise InputError(f"no objective {unknown_text}", f"take {', '.join(OBJECTIVES)}")
    ranges = dict(parse_range(text) for text in vary)
    if options["gpus"] is None and options["cluster"] is None and "gpu" in ranges:
        options["gpus"] = f"1x{ranges['gpu'][0]}"
    workload, cluster, plan = simulation_inputs(name, options)
    fields = plan.model_dump(exclude_unset=True, exclude={"kind"}) | {"gpus": plan.gpus}
    suite = Suite(workload, cluster, str(options["kind"]), fields)
    strategy = (
        RandomSearch(ranges, random_count, plan.seed) if random_count else ExhaustiveSearch(ranges)
    )
    total = random_count or sum(1 for _ in grid_points(ranges))
    with progress_bar("simulating") as progress:
        task = progress.add_task("", total=total)
        outcomes = run_suite(
            suite, strategy, jobs=jobs, store=store, done=lambda n: progress.advance(task, n)
        )
    outcomes = [o for o in outcomes if _is_in_ranges(o, keep)]
    best = pareto_front(outcomes, axes)
    if not best:
        reasons = sorted({o.error for o in outcomes if o.error})
        raise InputError("no point can run", reasons[0] if reasons else "no point is kept")
    if as_json:
        front_rows, rows = (
            [{"point": o.point, "error": o.error, **o.figures} for o in chosen]
            for chosen in (best, outcomes)
        )
        document = {"objectives": axes, "front": front_rows, "points": rows}
        click.echo(json.dumps(document, indent=2))
    else:
        _print(outcomes, best, axes, list(ranges), show_all)
    if html:
        title = workload.title or workload.name
        write_file(html, pareto_page(outcomes, best, axes, list(ranges), title))
        click.echo(f"{html}: {len(outcomes)} points", err=True)


def parse_range(text: str) -> tuple[str, list[Any]]:
    """`gpus=1,2,4` or `power_cap_watts=100:250:25`; numbers where they are numbers."""
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    name = {"power_cap": "power_cap_watts"}.get(name, name)
    if not equals or not values:
        raise InputError(f"{text!r} is not a range", "write it like gpus=1,2,4 or batch=32:256:32")
    if bounds := _RANGE.fullmatch(values):
        low, high, step = float(bounds[1]), float(bounds[2]), float(bounds[3] or 1)
        if step <= 0 or high < low:
            raise InputError(
                f"{text!r} has no values", "first:last:step needs last ≥ first, step > 0"
            )
        count = int((high - low) / step + 1e-9) + 1
        return name, [_number(low + i * step) for i in range(min(count, 1_000_001))]
    return name, [_value(text) for text in values.split(",")]


def _value(text: str) -> Any:
    text = text.strip()
    try:
        return _number(float(text))
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _number(value: float) -> float | int:
    if value != value or abs(value) == float("inf"):
        raise InputError("NaN and infinity cannot be varied over", "give finite numbers")
    return int(value) if value == int(value) else round(value, 12)


def _is_in_ranges(outcome: Outcome, keep: Sequence[str]) -> bool:
    for text in keep:
        name, _, limits = text.partition("=")
        bounds = _RANGE.fullmatch(limits)
        if not bounds:
            raise InputError(f"{text!r} is not a limit", "write it like batch=104:172")
        if outcome.error:
            continue
        if not isinstance(outcome.figures.get(name), int | float):
            numbers = ", ".join(k for k, v in outcome.figures.items() if isinstance(v, int | float))
            raise InputError(f"no figure {name!r}", f"take {numbers}")
        if not float(bounds[1]) <= outcome.figures[name] <= float(bounds[2]):
            return False
    return True


def _print(
    outcomes: list[Outcome],
    best: list[Outcome],
    objectives: list[str],
    varied: list[str],
    show_all: bool,
) -> None:
    other_objectives = [name for name in OBJECTIVES if name not in objectives]
    table = Table(
        *varied, *(OBJECTIVES[name].title for name in (*objectives, *other_objectives)),
        *(["on the front"] if show_all else []), box=None, header_style="bold",
    )  # fmt: skip
    chosen = {id(o) for o in best}
    shown = [o for o in outcomes if not o.error] if show_all else best
    for outcome in shown:
        cells = [f"{outcome.point[name]}" for name in varied]
        cells += [_text(name, outcome.figures[name]) for name in (*objectives, *other_objectives)]
        if show_all:
            cells.append("●" if id(outcome) in chosen else "")
        table.add_row(*cells)
    print_wide(table)
    failed = [o for o in outcomes if o.error]
    click.echo(
        f"{len(outcomes)} points, {len(best)} on the front, {len(failed)} impossible", err=True
    )
    for reason in sorted({o.error for o in failed})[:3]:
        click.echo(f"  impossible: {reason}", err=True)


def pareto_page(
    outcomes: list[Outcome],
    best: list[Outcome],
    objectives: list[str],
    varied: list[str],
    title: str,
) -> str:
    """The HTML page: the first two objectives are the axes, the first parameter the colour, and
    hovering shows what varies."""
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError:
        raise MissingError("the HTML page needs Plotly", "pip install 'carme[service]'") from None
    x, y = objectives[0], objectives[1] if len(objectives) > 1 else "energy"
    valid = [o for o in outcomes if not o.error]
    figure = go.Figure()

    def scatter(points: list[Outcome], **settings: Any) -> None:
        xs, ys = (
            [point.figures[axis] / OBJECTIVES[axis].axis_scale for point in points]
            for axis in (x, y)
        )
        figure.add_trace(go.Scatter(x=xs, y=ys, **settings))

    scatter(
        best, mode="lines", name="front",
        line={"color": "#c44", "width": 2, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    for name, group, colour in _groups(valid, varied[0]):
        scatter(
            group, mode="markers", name=name,
            marker={"size": 9, "line": {"width": 1, "color": "#fff"}, **colour},
            text=[_hover(o, varied) for o in group], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    scatter(
        best, mode="markers", name="on the front", hoverinfo="skip",
        marker={"size": 14, "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "#c44"}},
    )  # fmt: skip
    figure.update_layout(
        title=f"{title}: {len(valid)} points, {len(best)} on the Pareto front",
        template="plotly_white",
        xaxis_title=OBJECTIVES[x].axis_title,
        yaxis_title=OBJECTIVES[y].axis_title,
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False})
    return str(page)


def _groups(
    outcomes: list[Outcome], name: str
) -> Iterator[tuple[str, list[Outcome], dict[str, Any]]]:
    """Traces with their names and colours: one with a colour scale if all values are numbers, else
    one for each category, which Plotly colours by itself."""
    values = [outcome.point[name] for outcome in outcomes]
    if all(isinstance(value, int | float) for value in values):
        scale = {"color": values, "colorscale": "Viridis", "colorbar": {"title": name}}
        yield "points", outcomes, scale
        return
    for category in sorted({str(value) for value in values}):
        yield category, [o for o in outcomes if str(o.point[name]) == category], {}


def _hover(outcome: Outcome, varied: list[str]) -> str:
    lines = [f"<b>{name} = {outcome.point[name]}</b>" for name in varied]
    lines += [
        f"{figure.title} {_text(name, outcome.figures[name])}"
        for name, figure in OBJECTIVES.items()
    ]
    return "<br>".join(lines)


def _text(name: str, value: float) -> str:
    return _FORMATS[OBJECTIVES[name].unit](value)
