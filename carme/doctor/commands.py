"""`carme doctor`: every check that concerns this host, one line each."""

import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carme.config import config_path, load
from carme.doctor import site as sites
from carme.doctor.examine import examine
from carme.doctor.finding import Check, Finding, Level
from carme.doctor.plan import checks

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAULT: "bold red"}
_WIDTH = 110
"""Where nobody looks at a terminal; advice that is cut into pieces cannot be copied."""


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="carme.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(path: Path | None, as_json: bool) -> None:
    """Look at every part on this host and say what to do; exit 1 if there is a fault."""
    here = sites.find(path or config_path(), load(path))
    wanted = checks(here)
    found = examine(wanted)
    if as_json:
        rows = [
            {"group": check.group, **asdict(finding)}
            for check, finding in zip(wanted, found, strict=True)
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
        console.print(f"[bold]{socket.gethostname()}[/]: {here.words}")
        console.print(table(wanted, found))
        for line in summary(found):
            console.print(line)
    # Threads of checks that were given up do not keep us here: they are daemons.
    sys.exit(1 if any(finding.level is Level.FAULT for finding in found) else 0)


def table(wanted: Sequence[Check], found: Sequence[Finding]) -> Table:
    """What was looked at, by group; advice stands below what it is about."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    group = ""
    for check, finding in zip(wanted, found, strict=True):
        if finding.level not in _STYLES:
            continue
        if check.group != group:
            group = check.group
            grid.add_row("")
            grid.add_row(Text(group, "bold"))
        style = _STYLES[finding.level]
        level = Text(finding.level, style)
        grid.add_row(Text(f"  {finding.check}"), level, Text(finding.found))
        if finding.todo:
            grid.add_row("", Text("→", style, justify="right"), Text(finding.todo, style="bold"))
    return grid


def summary(found: Sequence[Finding]) -> list[Text]:
    """How many of each, what this host does not have, and what only root can look at."""
    lines = [Text()]
    for level in (Level.ABSENT, Level.ROOT):
        names = [finding.check for finding in found if finding.level is level]
        if names:
            again = "; sudo carme doctor looks at them" if level is Level.ROOT else ""
            title = level[0].upper() + level[1:]
            lines.append(Text(f"{title}: {', '.join(names)}{again}", style="dim"))
    counts = {level: sum(finding.level is level for finding in found) for level in _STYLES}
    words = [Text(f"{counts[Level.OK]} ok", "green")]
    for level, one in ((Level.WARNING, "warning"), (Level.FAULT, "fault")):
        count = counts[level]
        style = _STYLES[level] if count else "dim"
        words.append(Text(f"{count} {one}" + ("" if count == 1 else "s"), style))
    return [*lines, Text(", ").join(words)]
