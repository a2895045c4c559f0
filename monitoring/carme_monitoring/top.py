"""`carme top`: jobs and what they use, live in the terminal."""

import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from carme.config import load
from carme.errors import UnavailableError
from carme.units import format_bytes, format_duration, format_joules
from carme_monitoring.process import TOP_FOLDER
from carme_monitoring.top_rows import JobRow, read_cluster

_COLUMNS = ("job", "user", "node", "time", "GPUs", "GPU use", "GPU mem", "power", "memory",
            "energy", "GPU idle")  # fmt: skip


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="carme.toml.")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="The exporter's folder.")
@click.option("--node", help="Only this node.")
@click.option("--prometheus", "url", help="Address of Prometheus: show the whole cluster.")
@click.option("--login", type=click.Path(path_type=Path), help="File with its user:password.")
@click.option("--once", is_flag=True, help="Print the table once.")
@click.option("--json", "as_json", is_flag=True, help="For programs; once.")
@click.option("--every", default=2.0, show_default=True, help="Seconds between updates.")
def top(
    config: Path | None,
    run_folder: Path | None,
    node: str | None,
    url: str | None,
    login: Path | None,
    once: bool,
    as_json: bool,
    every: float,
) -> None:
    """Show jobs live: GPUs, utilisation, power, energy so far, waste. You see your own."""
    folder = (run_folder or load(config).exporter.run) / TOP_FOLDER if not url else Path()

    def job_rows() -> list[JobRow]:
        rows = read_cluster(url, login) if url else read(folder, node)
        return [row for row in rows if node in (None, row["node"])]

    if as_json:
        click.echo(json.dumps(job_rows(), indent=1))
        return
    console = Console()
    if once:
        console.print(draw(job_rows()))
        return
    with Live(draw(job_rows()), console=console, screen=True) as live:
        while True:
            time.sleep(max(0.5, every))
            live.update(draw(job_rows()))


def read(folder: Path, node: str | None = None) -> list[JobRow]:
    """The jobs that the exporters on this machine show to the caller."""
    sockets = sorted(folder.glob(f"{node or '*'}.sock"))
    rows: list[JobRow] = []
    has_answer = False
    for path in sockets:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(3)
                client.connect(str(path))
                with client.makefile("rb") as stream:
                    rows += json.loads(stream.readline())["jobs"]
            has_answer = True
        except (OSError, ValueError, KeyError):
            continue
    if not has_answer:
        raise UnavailableError(
            f"no exporter answers in {folder}", "carme-exporter runs on the nodes: try it there"
        )
    return rows


def draw(rows: Iterable[JobRow]) -> Table:
    """The table; the busiest job first."""
    table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[3:]:
        column.justify = "right"
    ordered = sorted(rows, key=lambda row: (row["state"] != "running", -row["gpu_watts"]))
    is_virtual = False
    for row in ordered:
        is_virtual = is_virtual or row["is_virtual"]
        used, held = row["gpu_utilisation"], row["gpu_held_seconds"]
        idle = row["gpu_idle_seconds"] / held if held else 0.0
        table.add_row(
            str(row["jobid"]),
            Text(row["user"]),
            Text(row["node"]),
            format_duration(row["seconds"]),
            f"{row['gpus']}{' virtual' if row['is_virtual'] else ''}" if row["gpus"] else "–",
            "–" if used is None else f"{used:.0%}",
            format_bytes(row["gpu_memory_bytes"]) if row["gpus"] else "–",
            f"{row['gpu_watts']:.0f} W" if row["gpus"] else "–",
            format_bytes(row["memory_bytes"]),
            format_joules(row["joules"]),
            f"{idle:.0%}" if held else "–",
            style="dim" if row["state"] != "running" else "red" if idle > 0.5 else "",
        )
    table.caption = None if table.row_count else "no jobs of yours here"
    if is_virtual:
        table.caption = "virtual GPUs: nothing computes on them, figures follow processor use"
    return table
