"""`carme nodes` and `carme queue`: the cluster on a terminal."""

import getpass
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carme.config import Config, load
from carme.errors import UnavailableError
from carme.jobs.terminal import printable, short
from carme.slurm.client import connect, read_snapshot
from carme.slurm.hostlist import compress
from carme.slurm.models import Gpus, Job, Node
from carme.slurm.snapshot import Snapshot
from carme.units import format_bytes, format_duration
from carme.view.client import ViewClient

_CONFIG = click.option(
    "--config", "path", type=click.Path(path_type=Path), help="carme.toml to use."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="For programs.")
_WORD_END = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PARTITION = click.option("-p", "--partition", default="", help="Only this partition.")


def current_snapshot(config: Config) -> Snapshot:
    """The view's snapshot; without a view, this process reads Slurm itself."""
    with suppress(UnavailableError):
        return ViewClient.of(config.view).snapshot()
    return read_snapshot(connect(config.slurm.model_copy(update={"retry_seconds": 0})))


@click.command()
@_CONFIG
@_PARTITION
@_JSON
def nodes(path: Path | None, partition: str, as_json: bool) -> None:
    """Show nodes and their free resources."""
    cluster = current_snapshot(load(path))
    nodes_shown = cluster.nodes_in(partition)
    if as_json:
        click.echo(json.dumps([node_json(node) for node in nodes_shown], indent=2))
        return
    console = Console()
    table = _table("node", "state", "GPUs free", "CPUs free", "memory free", "partitions")
    for column in table.columns[2:5]:
        column.justify = "right"
    for node in nodes_shown:
        table.add_row(
            node.name,
            _node_state(node),
            _gpus(node.gpus, node.gpus_free),
            f"{node.cpus_free}/{node.cpus}",
            f"{format_bytes(node.memory_free_bytes)}",
            ",".join(node.partitions),
        )
    console.print(table)
    for node in nodes_shown:
        if node.reason:
            console.print(Text(f"{node.name}: {printable(node.reason)}", style="dim"))
    _footer(console, cluster)


@click.command()
@_CONFIG
@_PARTITION
@click.option("-a", "--all", "everybody", is_flag=True, help="Jobs of all users, if you may.")
@_JSON
def queue(path: Path | None, partition: str, everybody: bool, as_json: bool) -> None:
    """Show jobs that wait and run: yours, or everybody's."""
    cluster = current_snapshot(load(path))
    user = getpass.getuser()
    jobs_shown = [
        job
        for job in cluster.jobs
        if not job.state.ended
        and (not partition or partition in job.partition.split(","))
        and (everybody or job.user == user or user == "root")
    ]
    if as_json:
        click.echo(json.dumps([job.model_dump(mode="json") for job in jobs_shown], indent=2))
        return
    console = Console()
    # Eighty columns have room for the name or the user: one's own jobs need no user.
    user_or_name = "user" if everybody else "name"
    table = _table("job", user_or_name, "partition", "state", "GPUs", "time", "where, why")
    for job in sorted(
        jobs_shown, key=lambda job: (job.state.waiting, -(job.priority or 0), job.id)
    ):
        table.add_row(
            job.label,
            Text(short(job.user if everybody else job.name)),
            job.partition,
            _job_state(job),
            _gpus(job.gpus),
            _job_time(job, time.time()),
            # With spaces in the reason (`Job Held User`), so that it can wrap.
            Text(compress(job.nodes) or _WORD_END.sub(" ", printable(job.reason))),
        )
    console.print(table if jobs_shown else Text("no jobs", style="dim"))
    for name, load_ in cluster.load.items():
        if not partition or name == partition:
            line = f"{name}: {load_.running} running, {load_.waiting} waiting"
            console.print(Text(line, style="dim"))
    _footer(console, cluster)


def node_json(node: Node) -> dict[str, Any]:
    """A node with its free resources, for programs."""
    free = {"open": node.open, "cpus_free": node.cpus_free, "gpus_free": node.gpus_free}
    return {**node.model_dump(mode="json"), **free, "memory_free_bytes": node.memory_free_bytes}


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[-1].overflow = "fold"
    return table


def _gpus(gpus: Gpus, free: Gpus | None = None) -> str:
    """A line per type: how many, or how many of them are free."""
    counts = {
        kind: f"{free.get(kind, 0)}/{n}" if free is not None else n for kind, n in gpus.items()
    }
    return "\n".join(f"{count} {kind}".strip() for kind, count in counts.items()) or "–"


def _node_state(node: Node) -> Text:
    text = " ".join([node.state.value, *node.flags]).lower().replace("_", " ")
    style = "green" if node.open and node.cpus_free else "yellow" if node.open else "red"
    return Text(text, style=style)


def _job_state(job: Job) -> Text:
    style = "green" if job.state.active else "yellow" if job.state.waiting else ""
    return Text((job.state_text or job.state.value).lower().replace("_", " "), style=style)


def _job_time(job: Job, now: float) -> str:
    """The time left of a running job, or the time that a job waits."""
    if job.state.active and job.started_at and job.limit_seconds:
        return f"{_minutes(job.started_at + job.limit_seconds - now)} left"
    if job.state.waiting and job.expected_start_at and job.expected_start_at > now:
        return f"in {_minutes(job.expected_start_at - now)}?"
    if job.state.waiting and job.submitted_at:
        return _minutes(now - job.submitted_at)
    return ""


def _minutes(seconds: float) -> str:
    """A duration without seconds once there are minutes."""
    whole_seconds = max(0, round(seconds))
    return format_duration(whole_seconds if whole_seconds < 60 else whole_seconds // 60 * 60)


def _footer(console: Console, cluster: Snapshot) -> None:
    age = format_duration(round(cluster.age_seconds(time.time())))
    if cluster.controller == "away":
        line = f"Slurm is away: {cluster.error}; this is {age} old"
        console.print(line, style="red", markup=False)
    else:
        console.print(Text(f"read {age} ago", style="dim"))
