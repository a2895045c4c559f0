"""`carme timeline`: a window of a run for Chrome's tracing and Perfetto, and its bursts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from carme.errors import ConfigError
from carme.jobs.bursts import Bursts
from carme.simulator.analysis.timeline import burst_figures, chrome_trace, simulate_window
from carme.simulator.commands.options import (
    find_cluster,
    find_plan,
    find_workload,
    hardware_options,
    plan_options,
)


@click.command()
@click.argument("name", metavar="WORKLOAD")
@hardware_options
@plan_options
@click.option("--steps", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the trace here.")
@click.option(
    "--hertz",
    type=click.FloatRange(0.1, 1e6),
    default=20.0,
    show_default=True,
    help="Sampling rate of the bursts.",
)
@click.option("--json", "as_json", is_flag=True, help="The burst figures for programs.")
def timeline(
    name: str, steps: int, output: Path | None, hertz: float, as_json: bool, **options: Any
) -> None:
    """Run a few steps of WORKLOAD operation by operation.

    Open the trace in chrome://tracing or ui.perfetto.dev. The burst figures are those that the
    exporter's samples of such a job would give.
    """
    workload = find_workload(name, options)
    cluster, gpus = find_cluster(options)
    window = simulate_window(workload, cluster, find_plan(options, gpus), steps)
    figures = burst_figures(window, 1 / hertz)
    if output:
        try:
            output.write_text(json.dumps(chrome_trace(window)), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
        click.echo(f"{output}: {window.report.operations} operations", err=True)
    if as_json:
        click.echo(json.dumps({name: b._asdict() for name, b in figures.items()}, indent=2))
        return
    _print(figures, window.report.seconds, window.steps)


def _print(figures: dict[str, Bursts], seconds: float, steps: int) -> None:
    table = Table(
        "resource", "burst", "idle", "burst amount", "pattern", box=None, header_style="bold"
    )
    for name, b in figures.items():
        network = name.startswith("network")
        amount = f"{b.burst_amount / 1e6:.4g} MB/s" if network else f"{b.burst_amount:.1%}"
        table.add_row(
            name.replace("_", " "),
            f"{b.burst_seconds:.3g} s",
            f"{b.idle_seconds:.3g} s",
            amount,
            b.pattern,
        )
    console = Console(highlight=False)
    console.print(f"{steps} step{'s' if steps > 1 else ''} in {seconds:.4g} s")
    console.print(table)
