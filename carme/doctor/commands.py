"""`carme doctor`: every check that concerns this host, one line each."""

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from carme.config import Config, load
from carme.doctor import cluster, host, platform
from carme.doctor.finding import Check, Finding, Level, run

CERTIFICATE = Path("/etc/carme/tls/hub.crt")
UNITS = (
    *("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "carme-view", "carme-proxy"),
    *("carme-hub", "carme-exporter", "carme-exporter-controller", "prometheus"),
)
_STYLES = {Level.FINE: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def checks(config: Config, units: list[str]) -> Iterator[Check]:
    """What there is to look at on a host that runs `units`."""
    yield Check("clock", host.read_clock)
    yield Check("names", lambda: host.read_names([socket.gethostname()]))
    for folder in (Path("/"), Path("/var"), config.images.folder):
        yield Check(f"disk {folder}", lambda folder=folder: host.read_disk(folder))  # type: ignore[misc]
    for name in units:
        yield Check(f"unit {name}", lambda name=name: host.read_unit(name))  # type: ignore[misc]
    yield Check("munge", cluster.read_munge)
    yield Check("slurmctld", cluster.read_controller)
    yield Check("nodes", cluster.read_nodes)
    if "carme-view" in units:
        yield Check("view", lambda: cluster.read_view(config))
        yield Check("view's right", cluster.read_operator)
    yield Check("hub", lambda: platform.read_hub(config))
    if "carme-hub" in units:
        yield Check("sudo rule", lambda: platform.read_sudo_rule(config))
        yield Check("certificate", lambda: host.read_certificate(CERTIFICATE))
    yield Check("images", lambda: platform.read_images(config))
    yield Check("container", lambda: platform.read_container(config))


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="carme.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(path: Path | None, as_json: bool) -> None:
    """Look at every part on this host and say what to do; exit 1 if something fails."""
    config = load(path)
    found = [run(check) for check in checks(config, host.installed_units(UNITS))]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        _show(found)
    if any(finding.level is Level.FAILURE for finding in found):
        sys.exit(1)


def _show(found: list[Finding]) -> None:
    table = Table("check", "", "seen", "what to do", box=None, pad_edge=False, header_style="bold")
    for finding in found:
        style = _STYLES.get(finding.level, "dim")
        level = f"[{style}]{finding.level}[/]"
        table.add_row(finding.check, level, finding.saw, finding.todo)
    Console().print(table)
