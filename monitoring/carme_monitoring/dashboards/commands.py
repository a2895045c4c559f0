"""`carme dashboards`: check them against Prometheus, and write them for Grafana."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carme.config import Config, load
from carme.errors import InputError
from carme.prometheus import PrometheusClient
from carme.templates import render
from carme_monitoring.dashboards import grafana
from carme_monitoring.dashboards.check import Checked, Checker
from carme_monitoring.dashboards.model import BOARDS, PROFILE_BOARDS, Dashboard

_path = click.Path(path_type=Path)
_STYLES = {"ok": "green", "not here": "dim"}


@click.group()
def dashboards() -> None:
    """Grafana's dashboards: check them, write them."""


@dashboards.command()
@click.argument("names", nargs=-1)
@click.option("--config", "path", type=_path, help="carme.toml to use.")
@click.option("--prometheus", "url", help="Its address; default: prometheus.url.")
@click.option("--login", type=_path, help="File with its user:password.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check(
    names: tuple[str, ...], path: Path | None, url: str | None, login: Path | None, as_json: bool
) -> None:
    """Run every query of every dashboard (or of NAMES) against Prometheus; exit 1 if one is wrong.

    Wrong are errors, empty answers, and metrics or labels that nothing exports. A panel with a
    need that is not met here (a waiting job, InfiniBand) may be empty. Dashboards made for other
    exporters are checked by typical queries, if exporter.profiles is on.
    """
    config = load(path)
    settings = config.prometheus
    boards = chosen(names, config)
    prometheus = PrometheusClient.of(
        url or settings.url, login or (None if url else settings.login_file)
    )
    results = list(Checker(prometheus, scrape_seconds=settings.scrape_seconds).check(boards))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=1))
    else:
        console = Console(highlight=False)
        console.print(draw(results))
        console.print(summary(results))
    if not all(result.is_fine for result in results):
        raise SystemExit(1)


@dashboards.command()
@click.argument("folder", type=_path)
@click.option("--config", "path", type=_path, help="carme.toml to use.")
@click.option("--password-file", help="Where Grafana finds Prometheus' password, if it asks one.")
def write(folder: Path, path: Path | None, password_file: str | None) -> None:
    """Write the dashboards and Grafana's provisioning files to FOLDER, to copy to Grafana's host.

    FOLDER/provisioning goes to /etc/grafana/provisioning, FOLDER/dashboards to
    /var/lib/grafana/dashboards/carme.
    """
    settings = load(path).prometheus
    grafana.write(folder / "dashboards", settings.scrape_seconds)
    for name, values in (
        ("datasources", {"prometheus_url": settings.url, "prometheus_user": "carme",
                         "prometheus_password_file": password_file,
                         "scrape_seconds": settings.scrape_seconds}),
        ("dashboards", {"dashboards_dir": "/var/lib/grafana/dashboards/carme"}),
    ):  # fmt: skip
        file = folder / "provisioning" / name / "carme.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render(f"grafana-{name}.yml", **values), encoding="utf-8")
    click.echo(f"{len(BOARDS)} dashboards and their provisioning are in {folder}")


def chosen(names: Sequence[str], config: Config) -> list[Dashboard]:
    """The dashboards called so, or all of Carme's and those of the profiles that are on."""
    carme_boards = {board.uid.removeprefix("carme-"): board for board in BOARDS}
    if not names:
        return [*BOARDS, *(PROFILE_BOARDS[profile] for profile in config.exporter.profiles)]
    boards_by_name = {**carme_boards, **PROFILE_BOARDS}
    for name in names:
        if name not in boards_by_name:
            raise InputError(
                f"there is no dashboard {name}", f"there are {', '.join(boards_by_name)}"
            )
    return [boards_by_name[name] for name in names]


def draw(results: Sequence[Checked]) -> Table:
    """A line for each query."""
    table = Table(
        "dashboard", "panel", "", "series", "ms", "", box=None, pad_edge=False, header_style="bold"
    )
    table.columns[1].no_wrap = True
    table.columns[1].overflow = "ellipsis"
    for column in table.columns[3:5]:
        column.justify = "right"
    for result in results:
        table.add_row(
            result.board.removeprefix("carme-"),
            Text(result.panel),
            Text(result.status, style=_STYLES.get(result.status, "red")),
            str(result.rows),
            f"{result.milliseconds:.0f}",
            Text(result.note, style="" if not result.is_fine else "dim"),
        )
    return table


def summary(results: Sequence[Checked]) -> str:
    """How many there were, and how many are wrong."""
    wrong = sum(not result.is_fine for result in results)
    absent = sum(result.status == "not here" for result in results)
    slowest = max((result.milliseconds for result in results), default=0)
    return (
        f"{len(results)} queries at {time.strftime('%H:%M')}: {wrong} wrong, {absent} with"
        f" unmet needs; the slowest took {slowest:.0f} ms"
    )
