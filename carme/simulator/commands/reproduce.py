"""`carme reproduce`: the published figures of a paper beside ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from carme import library
from carme.simulator.commands.tables import print_wide, working
from carme.simulator.papers import PublishedFigure, candle, limits, sprint


def _merpsys() -> list[PublishedFigure]:
    from carme.simulator.papers import merpsys  # brings Numba, which takes half a second

    return merpsys.rows(library.workload("kaldi-lstm"), library.cluster("merpsys"))


def _candle() -> list[PublishedFigure]:
    names = ("nt3", "p1b1", "p1b2", "p1b3")
    return candle.rows({name: library.workload(name) for name in names}, library.cluster("summit"))


def _limits() -> list[PublishedFigure]:
    names = ("alexnet", "googlenet", "resnet-50", "vgg-19")
    return limits.rows(
        {name: library.workload(name) for name in names}, library.node("tsubame-kfc-dl")
    )


PAPERS: dict[str, Callable[[], list[PublishedFigure]]] = {
    "merpsys": _merpsys,
    "sprint": sprint.rows,
    "candle": _candle,
    "limits": _limits,
}


@click.command()
@click.argument("paper", type=click.Choice(list(PAPERS)))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def reproduce(paper: str, as_json: bool) -> None:
    """Compute the figures of PAPER; exit 1 if one is outside its band."""
    with working(f"computing the figures of {paper}"):
        rows = PAPERS[paper]()
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], indent=2))
    else:
        _print(rows)
    if not all(row.inside for row in rows):
        sys.exit(1)


def _plain(row: PublishedFigure) -> dict[str, Any]:
    """JSON has no infinity: a row without a band has none there."""
    band = [row.low, row.high] if row.judged else None
    return {
        "figure": row.figure,
        "published": row.published,
        "here": float(row.simulated),
        "unit": row.unit,
        "band": band,
        "inside": row.inside,
        "note": row.note,
    }


def _print(rows: list[PublishedFigure]) -> None:
    table = Table(
        "figure", "published", "here", "difference", "band", "", box=None, header_style="bold"
    )
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        try:
            difference = f"{row.simulated - float(row.published):+.3g}{unit}"
        except ValueError:
            difference = ""
        band = f"{row.low:.4g} to {row.high:.4g}{unit}" if row.judged else "not judged"
        verdict = ("[green]in[/]" if row.inside else "[bold red]outside[/]") if row.judged else ""
        note = f"{verdict} [dim]{row.note}[/]" if row.note else verdict
        table.add_row(
            row.figure,
            f"{row.published}{unit}",
            f"{row.simulated:.4g}{unit}",
            difference,
            band,
            note,
        )
    print_wide(table)
