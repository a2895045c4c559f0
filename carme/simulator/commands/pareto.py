"""`carme pareto`: simulates many points and shows the Pareto front."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from carme.errors import InputError
from carme.library.suite_runner import Suite, run_suite
from carme.simulator.analysis.suite import Exhaustive, Outcome, Random, front, points
from carme.simulator.commands.options import (
    find_cluster,
    find_plan,
    find_workload,
    hardware_options,
    plan_options,
)
from carme.simulator.commands.tables import format_emissions, format_watts, print_wide, progress_bar
from carme.units import format_duration, format_joules

OBJECTIVES: dict[str, tuple[str, Callable[[float], str]]] = {
    "time": ("time", format_duration),
    "power": ("mean node power", format_watts),
    "energy": ("node energy", format_joules),
    "gpu_energy": ("GPU energy", format_joules),
    "emissions": ("emissions", format_emissions),
}
_RANGE = re.compile(r"(-?[\d.]+):(-?[\d.]+)(?::([\d.]+))?")


@click.command()
@click.argument("name", metavar="WORKLOAD")
@hardware_options
@plan_options
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
    "--random", "random_count", type=click.IntRange(1), help="So many random points instead of all."
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes."
)
@click.option(
    "--store", type=click.Path(path_type=Path), help="Keep results here, and go on from them."
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
    workload = find_workload(name, options)
    axes = _objectives(objectives)
    ranges = dict(parse_range(text) for text in vary)
    if options["gpus"] is None and options["cluster"] is None and "gpu" in ranges:
        options["gpus"] = f"1x{ranges['gpu'][0]}"
    cluster, gpus = find_cluster(options)
    plan = find_plan(options, gpus)
    fields = plan.model_dump(exclude_unset=True, exclude={"kind"}) | {"gpus": gpus}
    kind = str(plan.model_dump()["kind"])
    suite = Suite(workload, cluster, kind, fields)
    strategy = Random(ranges, random_count, plan.seed) if random_count else Exhaustive(ranges)
    total = random_count or sum(1 for _ in points(ranges))
    with progress_bar("simulating") as progress:
        task = progress.add_task("", total=total)
        outcomes = run_suite(
            suite, strategy, jobs=jobs, store=store, done=lambda n: progress.advance(task, n)
        )
    outcomes = [o for o in outcomes if _is_in_ranges(o, keep)]
    best = front(outcomes, axes)
    if not best:
        reasons = sorted({o.error for o in outcomes if o.error})
        raise InputError("no point can run", reasons[0] if reasons else "no point is kept")
    if as_json:
        click.echo(json.dumps(_document(outcomes, best, axes), indent=2))
    else:
        _print(outcomes, best, axes, list(ranges), show_all)
    if html:
        from carme.simulator.commands.pareto_page import write_page  # Plotly is an extra

        write_page(html, outcomes, best, axes, list(ranges), workload.title or workload.name)
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
    return name, [_value(word) for word in values.split(",")]


def _value(word: str) -> Any:
    word = word.strip()
    try:
        return _number(float(word))
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(word.lower(), word)


def _number(value: float) -> float | int:
    if value != value or abs(value) == float("inf"):
        raise InputError("NaN and infinity cannot be varied over", "give finite numbers")
    return int(value) if value == int(value) else round(value, 12)


def _objectives(text: str) -> list[str]:
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown or not names:
        raise InputError(
            f"no objective {', '.join(unknown) or text!r}", f"take {', '.join(OBJECTIVES)}"
        )
    return names


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


def _document(
    outcomes: list[Outcome], best: list[Outcome], objectives: list[str]
) -> dict[str, Any]:
    def plain(outcome: Outcome) -> dict[str, Any]:
        return {"point": outcome.point, "error": outcome.error, **outcome.figures}

    return {
        "objectives": objectives,
        "front": [plain(o) for o in best],
        "points": [plain(o) for o in outcomes],
    }


def _print(
    outcomes: list[Outcome],
    best: list[Outcome],
    objectives: list[str],
    varied: list[str],
    show_all: bool,
) -> None:
    others = [name for name in OBJECTIVES if name not in objectives]
    table = Table(
        *varied, *(OBJECTIVES[name][0] for name in (*objectives, *others)),
        *(["on the front"] if show_all else []), box=None, header_style="bold",
    )  # fmt: skip
    chosen = {id(o) for o in best}
    shown = [o for o in outcomes if not o.error] if show_all else best
    for outcome in shown:
        cells = [f"{outcome.point[name]}" for name in varied]
        cells += [OBJECTIVES[name][1](outcome.figures[name]) for name in (*objectives, *others)]
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
