"""`carme up`, `carme down`, `carme status`."""

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from carme.config import Config, load
from carme.local import accounts
from carme.local.cluster import LocalCluster
from carme.units import format_duration


def _cluster(config: Path | None, folder: Path | None) -> LocalCluster:
    loaded = load(config) if config else _rendered(folder) or Config()
    if folder:
        loaded = loaded.model_copy(update={"local": loaded.local.model_copy(update={"dir": folder})})
    return LocalCluster(loaded)


def _rendered(folder: Path | None) -> Config | None:
    """The configuration that an earlier `up` left, so that `down` and `status` need no options."""
    file = (folder or Config().local.dir) / "etc/carme.toml"
    return load(file) if file.exists() else None


_config = click.option(
    "--config", type=click.Path(path_type=Path), help="A carme.toml; remembered for the next call."
)
_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help="Where the cluster keeps everything (default /var/lib/carme-local).",
)


@click.command()
@_config
@_folder
def up(config: Path | None, folder: Path | None) -> None:
    """Bring up the whole cluster on this machine."""
    started = time.monotonic()
    cluster = _cluster(config, folder)
    console = Console(stderr=True, highlight=False)
    changed = cluster.up(console.print)
    seconds = time.monotonic() - started
    if changed:
        console.print(f"Everything answers ({format_duration(seconds)}).")
    else:
        console.print(f"Everything was running already ({format_duration(seconds)}).")
    _summary(cluster)


def _summary(cluster: LocalCluster) -> None:
    layout = cluster.layout
    users = accounts.made(layout).users
    config = layout.config
    table = Table("login", "password", "", box=None, pad_edge=False, header_style="bold")
    for name in (*config.local.users, *config.local.admins):
        table.add_row(name, users.get(name, ""), "admin" if name in config.local.admins else "")
    console = Console(highlight=False)
    console.print(f"\nOpen [bold cyan]{config.hub.url}[/] and log in:")
    console.print(table)
    nodes = ", ".join(
        f"{node.name} ({node.gpus.count} × {node.gpus.type})" if node.gpus else f"{node.name} (no GPU)"
        for node in config.local.nodes
    )
    console.print(f"\nNodes: {nodes}. GPUs named virtual are stand-ins: nothing computes on them.")
    console.print("What runs where: carme status. The queue: carme queue. Logs: " f"{layout.log}")
    console.print(f"Slurm's own commands: export SLURM_CONF={layout.slurm_conf}")


@click.command()
@_folder
@click.option("--purge", is_flag=True, help="Also remove its state and the users it made.")
def down(folder: Path | None, purge: bool) -> None:
    """Stop the cluster on this machine; nothing is left running."""
    cluster = _cluster(None, folder)
    console = Console(stderr=True, highlight=False)
    if purge:
        cluster.purge(console.print)
    else:
        cluster.down(console.print)
    console.print("Nothing is left running.")


@click.command()
@_folder
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(folder: Path | None, as_json: bool) -> None:
    """Show how each part does; exit 1 if one is not well."""
    cluster = _cluster(None, folder)
    lines = cluster.health()
    if as_json:
        rows = [
            {
                "part": line.part.name,
                "state": line.process.state if line.process else "ABSENT",
                "pid": line.process.pid if line.process else 0,
                "where": line.part.where,
                "well": line.well,
                "words": line.words,
            }
            for line in lines
        ]
        click.echo(json.dumps(rows))
    else:
        table = Table("part", "", "health", "pid", "up for", "where", box=None, pad_edge=False)
        for line in lines:
            process = line.process
            table.add_row(
                line.part.name,
                "[green]well[/]" if line.well else "[red]not well[/]",
                line.words,
                str(process.pid) if process and process.pid else "–",
                format_duration(process.seconds) if process and process.running else "–",
                line.part.where,
            )
        Console(highlight=False).print(table)
    sys.exit(0 if all(line.well for line in lines) else 1)
