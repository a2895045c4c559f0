"""`carme doctor`: every check that concerns this host, one line each."""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from carme.config import config_path, load
from carme.doctor import host_services as sites
from carme.doctor.checklist import checks
from carme.doctor.finding import Check, Finding, Level
from carme.doctor.runner import examine

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAULT: "bold red"}
_WIDTH = 110
"""Where nobody looks at a terminal; advice that is cut into pieces cannot be copied."""


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="carme.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(path: Path | None, as_json: bool) -> None:
    """Look at every service on this host and say what to do; exit 1 if there is a fault."""
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
        console = Console(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else _WIDTH
        console.print(Text(here.hostname, "bold").append(f": {here.description}", "not bold"))
        for line in (*table(wanted, found, width), *summary(found)):
            console.print(line)
    # Threads of checks that were given up do not keep us here: they are daemons.
    sys.exit(1 if any(finding.level is Level.FAULT for finding in found) else 0)


def table(wanted: Sequence[Check], found: Sequence[Finding], width: int) -> Iterator[Text]:
    """What was looked at, by group; advice stands below what it is about.

    Not a table of rich's: that cuts paths in two, and people copy them.
    """
    shown = [(c, f) for c, f in zip(wanted, found, strict=True) if f.level in _STYLES]
    names = max((len(finding.check) for _, finding in shown), default=0)
    margin = 2 + names + 2 + len(Level.WARNING) + 2
    group = ""
    for check, finding in shown:
        if check.group != group:
            group = check.group
            yield from (Text(), Text(group, "bold"))
        style = _STYLES[finding.level]
        head = Text(f"  {finding.check:<{names}}  ")
        head.append(f"{finding.level:<{len(Level.WARNING)}}  ", style)
        first, *more = _fold(finding.found, width - margin)
        yield head.append(first)
        yield from (Text(" " * margin + line) for line in more)
        for place, line in enumerate(_fold(finding.todo, width - margin - 2)):
            lead = " " * margin + ("  " if place else "→ ")
            yield Text(lead, style).append(line, "bold")


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 30), break_long_words=False, break_on_hyphens=False)


def summary(found: Sequence[Finding]) -> list[Text]:
    """How many of each, what this host does not have, and what only root can look at."""
    lines = [Text()]
    for level, title, end in (
        (Level.ABSENT, "Not on this host", ""),
        (Level.ROOT, "Needs root", "; sudo carme doctor looks at them"),
    ):
        names = [finding.check for finding in found if finding.level is level]
        if names:
            lines.append(Text(f"{title}: {', '.join(names)}{end}", style="dim"))
    counts = {level: sum(finding.level is level for finding in found) for level in _STYLES}
    words = [Text(f"{counts[Level.OK]} ok", "green")]
    for level, one in ((Level.WARNING, "warning"), (Level.FAULT, "fault")):
        count = counts[level]
        style = _STYLES[level] if count else "dim"
        words.append(Text(f"{count} {one}" + ("" if count == 1 else "s"), style))
    return [*lines, Text(", ").join(words)]
