"""`carme calibrate`: coefficients of the simulator from measured steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from carme.config import load
from carme.errors import InputError
from carme.predict.fit import fit
from carme.predict.measurements import parse_steps, with_watts
from carme.simulator.commands.options import simulation_inputs, simulation_options
from carme.simulator.plans import Synchronous
from carme.view.client import ViewClient

_MAX_BYTES = 20_000_000


@click.command()
@click.argument("workload")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@simulation_options
@click.option(
    "--job", "job_id", type=click.IntRange(1), help="A job of yours that was measured: its power."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def calibrate(workload: str, file: Path, job_id: int | None, as_json: bool, **options: Any) -> None:
    """Fit the simulator to measured steps of WORKLOAD in FILE (JSON or CSV).

    Columns are batch, gpus, seconds, and where they were timed compute, communication, update,
    load, wait, gpu_watts, and alone_compute and alone_update: the seconds of a worker while the
    others wait.
    """
    described, cluster, plan = simulation_inputs(workload, options)
    if not isinstance(plan, Synchronous):
        raise InputError("only synchronous plans can be fitted", "leave --plan out")
    steps = parse_steps(_read(file), str(file))
    if job_id is not None:
        steps = with_watts(steps, ViewClient.of(load().view).report(job_id))
    calibration = fit(described, cluster, plan, steps)
    if as_json:
        click.echo(json.dumps(calibration.model_dump(mode="json"), indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{calibration.provenance.words}[/] ({cluster.title or cluster.name})")
    table = Table("coefficient", "value", "", box=None, header_style="bold")
    for name, value in calibration.coefficients:
        note = "not seen in these steps" if name in calibration.provenance.unseen else ""
        table.add_row(name, _amount(name, value), note)
    console.print(table)
    figure = calibration.time.estimate(1.0, "")
    console.print(f"90 % of such runs take {figure.low:.2f} to {figure.high:.2f} of the prediction")


def _amount(name: str, value: float) -> str:
    if name.startswith("shared_"):
        return f"+{value:.1%} for each doubling of the workers"
    return f"{value:.4g} s" if name.endswith("seconds") else f"{value:.4g} x"


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise InputError(f"{file} is larger than {_MAX_BYTES:,} bytes", "give a part of it")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
