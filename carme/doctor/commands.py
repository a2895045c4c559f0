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
from carme.doctor import host_services
from carme.doctor.check import Check, Finding, Level, run_checks
from carme.doctor.checklist import checks

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAULT: "bold red"}
_WIDTH = 110
"""Columns when the output is no terminal; people copy whole lines of advice."""


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="carme.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(path: Path | None, as_json: bool) -> None:
    """Check every service on this host and say what to do; exit 1 if there is a fault."""
    site = host_services.find(path or config_path(), load(path))
    checklist = checks(site)
    findings = run_checks(checklist)
    if as_json:
        rows = [
            {"group": check.group, **asdict(finding)}
            for check, finding in zip(checklist, findings, strict=True)
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else _WIDTH
        console.print(Text(site.hostname, "bold").append(f": {site.description}", "not bold"))
        for line in (*table(checklist, findings, width), *summary(findings)):
            console.print(line)
    # Checks that exceeded their time limit do not delay the exit: their threads are daemons.
    sys.exit(1 if any(finding.level is Level.FAULT for finding in findings) else 0)


def table(checklist: Sequence[Check], findings: Sequence[Finding], width: int) -> Iterator[Text]:
    """The findings by group, each with its advice below.

    Not a rich table: that breaks paths, and people copy them.
    """
    shown = [(c, f) for c, f in zip(checklist, findings, strict=True) if f.level in _STYLES]
    name_width = max((len(finding.check) for _, finding in shown), default=0)
    margin = 2 + name_width + 2 + len(Level.WARNING) + 2
    group = ""
    for check, finding in shown:
        if check.group != group:
            group = check.group
            yield from (Text(), Text(group, "bold"))
        style = _STYLES[finding.level]
        head = Text(f"  {finding.check:<{name_width}}  ")
        head.append(f"{finding.level:<{len(Level.WARNING)}}  ", style)
        first_line, *further_lines = _fold(finding.found, width - margin)
        yield head.append(first_line)
        yield from (Text(" " * margin + line) for line in further_lines)
        for number, line in enumerate(_fold(finding.todo, width - margin - 2)):
            lead = " " * margin + ("  " if number else "→ ")
            yield Text(lead, style).append(line, "bold")


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 30), break_long_words=False, break_on_hyphens=False)


def summary(findings: Sequence[Finding]) -> list[Text]:
    """How many findings there are, what this host does not have, and what only root can check."""
    lines = [Text()]
    for level, title, end in (
        (Level.ABSENT, "Not on this host", ""),
        (Level.ROOT, "Needs root", "; run sudo carme doctor for them"),
    ):
        names = [finding.check for finding in findings if finding.level is level]
        if names:
            lines.append(Text(f"{title}: {', '.join(names)}{end}", style="dim"))
    counts = {level: sum(finding.level is level for finding in findings) for level in _STYLES}
    totals = [Text(f"{counts[Level.OK]} ok", "green")]
    for level, noun in ((Level.WARNING, "warning"), (Level.FAULT, "fault")):
        count = counts[level]
        style = _STYLES[level] if count else "dim"
        totals.append(Text(f"{count} {noun}" + ("" if count == 1 else "s"), style))
    return [*lines, Text(", ").join(totals)]
