"""`carme reproduce`: the published figures of a paper beside simulated ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from carme import library
from carme.simulator.commands.options import print_wide, spinner
from carme.simulator.papers import PublishedFigure, candle, limits, merpsys, sprint
from carme.simulator.workload import Workload


def _workloads(*names: str) -> dict[str, Workload]:
    return {name: library.workload(name) for name in names}


PAPERS: dict[str, Callable[[], list[PublishedFigure]]] = {
    "merpsys": lambda: merpsys.rows(library.workload("kaldi-lstm"), library.cluster("merpsys")),
    "sprint": sprint.rows,
    "candle": lambda: candle.rows(
        _workloads("nt3", "p1b1", "p1b2", "p1b3"), library.cluster("summit")
    ),
    "limits": lambda: limits.rows(
        _workloads("alexnet", "googlenet", "vgg-19"), library.node("tsubame-kfc-dl")
    ),
}


@click.command()
@click.argument("paper", type=click.Choice(list(PAPERS)))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def reproduce(paper: str, as_json: bool) -> None:
    """Compute the figures of PAPER; exit 1 if one is outside its band."""
    with spinner(f"computing the figures of {paper}"):
        rows = PAPERS[paper]()
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], indent=2))
    else:
        _print_figures(rows)
    if not all(row.inside for row in rows):
        sys.exit(1)


def _plain(row: PublishedFigure) -> dict[str, Any]:
    """JSON has no infinity: a row without a band has none there."""
    band = [row.low, row.high] if row.has_band else None
    return {
        "figure": row.figure,
        "published": None if row.origin == "worked out" else row.reference,
        "reference": row.reference,
        "origin": row.origin,
        "here": float(row.simulated),
        "unit": row.unit,
        "band": band,
        "inside": row.inside,
        "note": row.note,
    }


def _print_figures(rows: list[PublishedFigure]) -> None:
    table = Table(
        "figure", "reference", "", "here", "difference", "band", "", box=None, header_style="bold"
    )
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        try:
            difference = f"{row.simulated - float(row.reference):+.3g}{unit}"
        except ValueError:
            difference = ""
        band = f"{row.low:.4g} to {row.high:.4g}{unit}" if row.has_band else "not judged"
        verdict = ("[green]in[/]" if row.inside else "[bold red]outside[/]") if row.has_band else ""
        note = f"{verdict} [dim]{row.note}[/]" if row.note else verdict
        table.add_row(
            row.figure,
            f"{row.reference}{unit}",
            row.origin,
            f"{row.simulated:.4g}{unit}",
            difference,
            band,
            note,
        )
    print_wide(table)
