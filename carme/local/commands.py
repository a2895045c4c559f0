"""`carme up`, `carme down`, `carme status`."""

import json
import os
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from carme.config import Config, config_path, load
from carme.local import unix_users
from carme.local.cluster import SITE_FILE, LocalCluster
from carme.local.layout import Layout
from carme.units import format_duration


def chosen(config: Path | None, folder: Path | None, for_up: bool = False) -> Config:
    """The configuration of the options, of CARME_CONFIG or of an earlier `up`, in this order.

    Only `up` prefers CARME_CONFIG to an earlier `up`: other commands are about what runs.
    """
    if config:
        loaded = load(config)
    elif folder:
        loaded = _remembered(folder) or _named() or Config()
    else:
        named = _named()
        used = None if named and for_up else _remembered((named or Config()).local.dir)
        loaded = used or named or Config()
    if folder:
        local = loaded.local.model_copy(update={"dir": folder})
        loaded = loaded.model_copy(update={"local": local})
    return loaded


def _remembered(folder: Path) -> Config | None:
    """The configuration of an earlier `up`, so that later calls need no options."""
    file = folder / SITE_FILE
    return load(file) if file.exists() else None


def _named() -> Config | None:
    """The configuration that CARME_CONFIG names, as for every other command."""
    if not os.environ.get("CARME_CONFIG"):
        return None
    loaded = load()
    # `up` writes a file with derived paths for its services; the user passed another file.
    is_rendered = config_path() == loaded.local.dir / "etc/carme.toml"
    return (_remembered(loaded.local.dir) if is_rendered else None) or loaded


_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A carme.toml (default: CARME_CONFIG); remembered for the next call.",
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
    """Start the whole cluster on this machine."""
    started = time.monotonic()
    cluster = LocalCluster(chosen(config, folder, for_up=True))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    changed = cluster.up(console.print)
    seconds = time.monotonic() - started
    if changed:
        console.print(f"Everything is healthy ({format_duration(seconds)}).")
    else:
        console.print(f"Everything was running already ({format_duration(seconds)}).")
    _summary(cluster)


def _summary(cluster: LocalCluster) -> None:
    """Print the hub's URL, the logins, and where each service runs."""
    layout, config = cluster.layout, cluster.layout.config
    console = Console(highlight=False, soft_wrap=True)
    console.print("\n[bold]What runs where[/]")
    table = _table("service", "", "where")
    for service in cluster.services():
        table.add_row(service.name, service.service.description, _short(service.address, layout))
    console.print(table)
    console.print(f"Paths and logs (log/) are below {layout.dir}.", style="dim")
    console.print("\n[bold]Nodes[/]")
    for node in config.local.nodes:
        gpus = f"{node.gpus.count} × {node.gpus.type}" if node.gpus else "no GPU"
        console.print(f"{node.name}: {gpus}, {node.cpus} cores, {node.memory_mb} MB")
    if layout.virtual:
        console.print("GPUs named virtual are stand-ins: they compute nothing.")
    console.print(f"\n[bold]Open [cyan]{config.hub.url}[/] and log in[/]")
    users = unix_users.created(layout).users
    table = _table("login", "password", "")
    for name in (*config.local.users, *config.local.admins):
        table.add_row(name, users.get(name, ""), "admin" if name in config.local.admins else "")
    console.print(table)
    console.print(
        "\nHealth: carme status. Queue: carme queue. For Slurm's own commands: "
        f"export SLURM_CONF={layout.slurm_conf}"
    )


def _short(address: str, layout: Layout) -> str:
    """The address, or a path without the cluster's folder."""
    return address.removeprefix(f"{layout.dir}/")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for column in columns:
        # Paths are wrapped, not cut off.
        table.add_column(column, overflow="fold", no_wrap=column == "service")
    return table


@click.command()
@_folder
@click.option("--purge", is_flag=True, help="Also remove its state and the users it created.")
def down(folder: Path | None, purge: bool) -> None:
    """Stop the cluster on this machine with all its processes."""
    cluster = LocalCluster(chosen(None, folder))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if purge:
        cluster.purge(console.print)
    else:
        cluster.down(console.print)
    console.print("Nothing is left running.")


@click.command()
@_folder
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(folder: Path | None, as_json: bool) -> None:
    """Show the health of each service; exit 1 if one is unhealthy."""
    cluster = LocalCluster(chosen(None, folder))
    lines = cluster.health()
    if as_json:
        rows = [
            {
                "part": line.service.name,
                "state": line.process.state if line.process else "ABSENT",
                "pid": line.process.pid if line.process else 0,
                "where": line.service.address,
                "well": line.is_healthy,
                "words": line.message,
            }
            for line in lines
        ]
        click.echo(json.dumps(rows))
    else:
        table = _table("service", "", "health", "pid", "up for", "where")
        for line in lines:
            process = line.process
            table.add_row(
                line.service.name,
                "[green]healthy[/]" if line.is_healthy else "[red]unhealthy[/]",
                line.message,
                str(process.pid) if process and process.pid else "–",
                format_duration(process.seconds) if process and process.is_running else "–",
                _short(line.service.address, cluster.layout),
            )
        Console(highlight=False).print(table)
    sys.exit(0 if all(line.is_healthy for line in lines) else 1)
