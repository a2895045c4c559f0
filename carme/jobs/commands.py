"""`carme job` and `carme jobs`: what jobs requested, used and wasted."""

import csv
import io
import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from carme.config import load
from carme.errors import InputError
from carme.jobs import terminal
from carme.jobs.job_reporter import MAX_JOBS
from carme.jobs.models import LOOK_BACK_SECONDS, JobLine, no_such_job
from carme.jobs.service_client import ServiceJobsClient
from carme.view.client import ViewClient

_CONFIG = click.option(
    "--config", "path", type=click.Path(path_type=Path), help="carme.toml to use."
)
_URL = click.option(
    "--url",
    envvar="CARME_HUB_URL",
    help="Address of the hub, to ask Carme's service there instead of carme-view on this machine"
    " [CARME_HUB_URL].",
)
_TOKEN = click.option(
    "--token",
    envvar=("CARME_TOKEN", "JUPYTERHUB_API_TOKEN"),
    default="",
    help="Token of the hub for --url; better set as CARME_TOKEN, as others on this machine see"
    " options.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="For programs.")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
CSV_FIELDS = (
    "id", "label", "name", "user", "account", "partition", "state", "nodes", "submitted_at",
    "started_at", "ended_at", "elapsed_seconds", "cpus", "memory_bytes", "gpus", "cpu_seconds",
    "memory_peak_bytes", "gpu_held_seconds", "gpu_idle_seconds", "joules", "emissions_grams",
    "cost", "currency",
)  # fmt: skip


@click.command()
@click.argument("number", metavar="ID")
@_CONFIG
@_URL
@_TOKEN
@_JSON
def job(number: str, path: Path | None, url: str | None, token: str, as_json: bool) -> None:
    """Report on job ID: requested, used, wasted, its energy, and what to request next time.

    You see your own jobs, an administrator all. Exit code 1: no such job, or no answer; 3: the job
    exists, but Prometheus has no figures of it.
    """
    client = _client(path, url, token)
    report = client.report(_job_id(number, client))
    if as_json:
        click.echo(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        console = Console(highlight=False)
        for part in terminal.report(report):
            console.print(part)
    if report.problem and not report.state.waiting:
        raise SystemExit(3)


@click.command()
@_CONFIG
@_URL
@_TOKEN
@click.option("-u", "--user", default="", help="Only jobs of this user.")
@click.option("-A", "--account", default="", help="Only jobs of this account.")
@click.option("-p", "--partition", default="", help="Only jobs in this partition.")
@click.option(
    "-s", "--state", default="", help="running, waiting, ended, or one of Slurm's states."
)
@click.option(
    "--since", default="1d", show_default=True, help="90m, 12h, 7d, 4w ago, or 2026-03-01[T12:00]."
)
@click.option("--until", help="As --since; default: now.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, MAX_JOBS),
    default=100,
    show_default=True,
    help="Number of jobs; the newest.",
)
@_JSON
@click.option("--csv", "as_csv", is_flag=True, help="For spreadsheets; base units.")
def jobs(
    path: Path | None,
    url: str | None,
    token: str,
    since: str,
    until: str | None,
    as_json: bool,
    as_csv: bool,
    **filters: Any,
) -> None:
    """List jobs with what they used: yours, or those of all users for an administrator."""
    now = time.time()
    job_list = _client(path, url, token).reports(
        since=parse_moment(since, now),
        until=parse_moment(until, now) if until else None,
        **filters,
    )
    if as_json:
        click.echo(json.dumps(job_list.model_dump(mode="json"), indent=2))
    elif as_csv:
        click.echo(to_csv(job_list.jobs), nl=False)
    else:
        console = Console(highlight=False)
        for part in terminal.listing(job_list):
            console.print(part)
    if job_list.problem and (as_json or as_csv):
        click.echo(f"carme: {job_list.problem}", err=True)


def _client(path: Path | None, url: str | None, token: str) -> ViewClient | ServiceJobsClient:
    """A client of the service at the hub's address if that is set, else of carme-view."""
    if url:
        return ServiceJobsClient(url, token)
    return ViewClient.of(load(path).view)


def _job_id(text: str, client: ViewClient | ServiceJobsClient) -> int:
    """Slurm's number of the job; that of `5_1` is looked up."""
    if text.isdecimal() and 0 < int(text) < 2**31:
        return int(text)
    if re.fullmatch(r"\d{1,10}_\d{1,10}", text):
        since = int(time.time()) - LOOK_BACK_SECONDS
        for entry in client.reports(since=since, limit=MAX_JOBS).jobs:
            if entry.label == text:
                return entry.id
        raise no_such_job(text)
    raise InputError(f"{text!r} is not the number of a job", "such as 4711, or 4711_3 of an array")


def parse_moment(text: str, now: float) -> int:
    """Unix seconds of `7d` (ago) or `2026-03-01T12:00` (the machine's local time)."""
    if match := re.fullmatch(r"(\d{1,6})([mhdw])", text):
        return int(now) - int(match[1]) * _UNITS[match[2]]
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        raise InputError(
            f"{text!r} is not a time", "write it like 90m, 12h, 7d or 2026-03-01T12:00"
        ) from None


def to_csv(jobs: tuple[JobLine, ...]) -> str:
    """A header and a line for each job; a field that was not measured is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for entry in jobs:
        measured = entry.measured
        totals = measured.model_dump() if measured else {}
        currency, cost = next(iter((measured.cost if measured else {}).items()), ("", None))
        row = {
            **totals,
            **entry.model_dump(mode="json"),
            # A job's name is its user's text: a spreadsheet must not take it for a formula.
            "name": f"'{entry.name}" if entry.name[:1] in _FORMULA_STARTS else entry.name,
            "nodes": " ".join(entry.nodes),
            "elapsed_seconds": round(entry.elapsed_seconds),
            "cpus": entry.asked.cpus,
            "memory_bytes": entry.asked.memory_bytes,
            "gpus": entry.asked.gpu_count,
            "joules": measured.total_joules if measured and measured.joules else None,
            "cost": cost,
            "currency": currency,
        }
        writer.writerow(["" if row.get(name) is None else row[name] for name in CSV_FIELDS])
    return file.getvalue()
