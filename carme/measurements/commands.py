"""`carme validate`: errors of the simulator against published measurements.

The measurements are not part of Carme: --data or CARME_DATA names their folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from carme.errors import ConfigError, InputError, MissingError
from carme.measurements.eligibility import RULE
from carme.measurements.judgement import Judgement, judge
from carme.measurements.names import table as name_table
from carme.measurements.rows import is_kernel_table, parse_rows
from carme.measurements.summary import ErrorSummary, SummaryTables, summary_tables
from carme.measurements.traces import accuracies
from carme.simulator.commands.options import print_wide, spinner


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="CARME_DATA",
    help="Folder of the measurements; CARME_DATA if unset.",
)
@click.option(
    "--suite",
    type=click.Choice(["traces", "published"]),
    default="traces",
    show_default=True,
    help="Traces of single experiments, or the tables of training runs in published/.",
)
@click.option("--rows", is_flag=True, help="With --suite published --json: every row, too.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def validate(data: Path | None, suite: str, rows: bool, as_json: bool) -> None:
    """Compare the simulator with published measurements and print its errors."""
    if data is None:
        raise InputError("name the folder of measurements with --data or CARME_DATA")
    if suite == "published":
        _published(data, rows, as_json)
    else:
        _traces(data, as_json)


def _traces(data: Path, as_json: bool) -> None:
    with spinner("comparing with measurements"):
        results = accuracies(data)
    if as_json:
        click.echo(json.dumps([a.__dict__ for a in results], indent=2))
        return
    table = Table(
        "what", "points", "median", "mean", "90th percentile", "sim/meas", "measured by", box=None
    )
    for a in results:
        table.add_row(
            a.what, str(a.points), f"{a.median_error:.1%}", f"{a.mean_error:.1%}",
            f"{a.ninth_decile:.0%}", f"{a.bias:.2f}", a.source,
        )  # fmt: skip
    print_wide(table)


def read_published(data: Path) -> tuple[list[Judgement], list[str]]:
    """Every row of `published/*.csv`, judged, and a line for each file that was skipped."""
    folder = data / "published"
    if not folder.is_dir():
        raise MissingError(f"no measurements in {folder}", "give --data FOLDER or set CARME_DATA")
    paths = sorted(folder.glob("*.csv"))
    names = {path.name for path in paths}
    notes = [f"{name}: not there" for name in name_table().files if name not in names]
    judgements: list[Judgement] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        if is_kernel_table(text):
            notes.append(f"{path.name}: times of kernels or collectives, not of training runs")
            continue
        judgements += [judge(row) for row in parse_rows(text, path.name)]
    if not judgements:
        raise MissingError(f"no tables of training runs in {folder}", "give --data FOLDER")
    return judgements, notes


def _published(data: Path, rows: bool, as_json: bool) -> None:
    with spinner("simulating published runs"):
        judgements, notes = read_published(data)
        tables = summary_tables(judgements)
    if as_json:
        answer: dict[str, object] = {"rule": RULE, "skipped_files": notes}
        answer |= {name: [s.plain() for s in group] for name, group in tables._asdict().items()}
        if rows:
            answer["rows"] = [_row(j) for j in judgements]
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(RULE + "\n")
    _print(tables)
    for note in notes:
        click.echo(f"skipped: {note}")


def _row(judgement: Judgement) -> dict[str, object]:
    row = judgement.row
    columns = ("model", "gpu", "gpus", "precision", "micro_batch", "global_batch", "seq_len")
    return {
        "file": row.file,
        "line": row.line,
        **{column: row.text(column) for column in columns},
        "not_eligible": judgement.not_eligible,
        "not_modelled": judgement.not_modelled,
        "refused": judgement.refused,
        "measured_seconds": judgement.measured_seconds,
        "predicted_seconds": judgement.predicted_seconds,
        "measured_bytes": judgement.measured_bytes,
        "predicted_bytes": judgement.predicted_bytes,
    }


def _print(tables: SummaryTables) -> None:
    for title, names, groups in (
        ("By source", ("source",), tables.sources),
        ("By source and GPU", ("source", "gpu"), tables.source_gpus),
        ("By source and model", ("source", "model"), tables.source_models),
        ("By GPU", ("gpu",), tables.gpus),
    ):
        table = Table(
            *names, "rows", "eligible", "modelled", "mean", "median", "90th pct", "bias",
            "refused", "memory", "doubled refused",
            title=title, title_justify="left", box=None,
        )  # fmt: skip
        for s in groups:
            if s.eligible:
                mark = "*" if s.in_sample else ""
                table.add_row(*(f"{getattr(s, name)}{mark}" for name in names), *_cells(s))
        print_wide(table)
        click.echo()
    for s in tables.sources:
        for what, reasons in (("not eligible", s.not_eligible), ("not modelled", s.not_modelled)):
            if reasons:
                text = "; ".join(f"{reason} {count}" for reason, count in reasons.items())
                click.echo(f"{s.source}, {what}: {text}")
        if s.in_sample:
            click.echo(f"* {s.source}, in sample: {s.in_sample}")


def _cells(s: ErrorSummary) -> list[str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    memory = f"{percent(s.median_memory_error)} of {s.memory_rows}" if s.memory_rows else ""
    doubled = f"{s.doubled_refused} of {s.nearly_full}" if s.nearly_full else ""
    share = f"{s.modelled / s.eligible:.0%}" if s.eligible else ""
    return [
        str(s.rows), str(s.eligible), f"{s.modelled} ({share})",
        percent(s.mean_error), percent(s.median_error), percent(s.ninth_decile),
        "" if s.bias is None else f"{s.bias:.2f}", str(s.falsely_refused), memory, doubled,
    ]  # fmt: skip
