"""`carme-discovery`: writes the nodes that Slurm has into a file that Prometheus watches.

The file is replaced as a whole, and only after Slurm has answered: while the view or the controller
does not answer, Prometheus keeps its targets.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import click

from carme.config import Config, load
from carme.errors import CarmeError, ConfigError
from carme.slurm.models import Node
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import NodeState
from carme.system.files import write

log = logging.getLogger(__name__)
_EVERY_SECONDS = 10.0
_OFF = {"POWERED_DOWN", "POWERING_DOWN"}
"""A cloud node that is switched off has no exporter, and that is no fault."""


class SnapshotSource(Protocol):
    """The method of carme.view.client.ViewClient that discovery uses."""

    def snapshot(self) -> Snapshot: ...


def targets(
    nodes: Iterable[Node], cluster: str, port: int, ports: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Prometheus' target groups, one a node; `ports` where nodes have ports of their own."""
    groups = []
    for node in nodes:
        if node.state is NodeState.FUTURE or _OFF & set(node.flags):
            continue
        address = node.address or node.name
        if ":" in address:
            address = f"[{address}]"
        groups.append(
            {
                "targets": [f"{address}:{(ports or {}).get(node.name, port)}"],
                "labels": {"cluster": cluster, "node": node.name},
            }
        )
    return sorted(groups, key=lambda group: group["labels"]["node"])


def local_ports(config: Config) -> dict[str, int]:
    """The one-machine cluster's nodes share an address."""
    first = config.local.ports.exporter_first
    return {node.name: first + place for place, node in enumerate(config.local.nodes)}


class Discovery:
    """Keeps the file equal to the view's nodes. `update` once; `run` until `stop`."""

    def __init__(
        self,
        view: SnapshotSource,
        path: Path,
        cluster: str,
        port: int,
        ports: Mapping[str, int] | None,
    ) -> None:
        self._view, self._path = view, path
        self._cluster, self._port, self._ports = cluster, port, ports
        self._logged = ""
        self._stop = threading.Event()

    def update(self) -> int | None:
        """Nodes written; None where the file was left as it was."""
        try:
            snapshot = self._view.snapshot()
        except CarmeError as error:
            self._log(f"targets stay as they are: {error.message}")
            return None
        if snapshot.controller != "up" or not snapshot.nodes:
            reason = snapshot.error or "Slurm names no node"
            self._log(f"targets stay as they are: {reason}")
            return None
        groups = targets(snapshot.nodes, self._cluster, self._port, self._ports)
        try:
            lines = ",\n".join(json.dumps(group) for group in groups)
            # An admin who runs this by hand must not leave a file that Prometheus cannot read.
            owner = self._path.parent.owner() if os.geteuid() == 0 else None
            if not write(self._path, f"[\n{lines}\n]\n", mode=0o640, owner=owner):
                os.utime(self._path)  # an alert watches the age of the file
        except OSError as error:
            self._log(f"{self._path}: {error.strerror}")
            return None
        self._log(f"{len(groups)} nodes")
        return len(groups)

    def run(self, every_seconds: float = _EVERY_SECONDS) -> None:
        """Update every `every_seconds` until `stop` is called."""
        while not self._stop.is_set():
            self.update()
            self._stop.wait(every_seconds)

    def stop(self, *_: int | FrameType | None) -> None:
        """End `run`."""
        self._stop.set()

    def _log(self, message: str) -> None:
        """Log the message if it differs from the last one."""
        if message != self._logged:
            log.info("%s", message)
            self._logged = message


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="carme.toml; default: CARME_CONFIG or /etc/carme.",
)
@click.option("--once", is_flag=True, help="Write the file once and end; fails if it could not.")
@click.option("--local", is_flag=True, help="The one-machine cluster: a port for each node.")
def discovery(config: Path | None, once: bool, local: bool) -> None:
    """Write the nodes that Slurm has to prometheus.targets, for Prometheus' file_sd."""
    from carme.view.client import ViewClient

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    settings = load(config)
    path = settings.prometheus.targets
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{path.parent}: not a folder that can be written", "see prometheus.targets"
        )
    ports = local_ports(settings) if local else None
    process = Discovery(
        ViewClient.of(settings.view), path, settings.cluster.name, settings.exporter.port, ports
    )
    if once:
        sys.exit(0 if process.update() is not None else 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, process.stop)
    process.run()


def main() -> None:
    """The command line; an expected error is one line and exit code 1."""
    try:
        discovery()
    except CarmeError as error:
        click.echo(f"carme-discovery: {error}", err=True)
        sys.exit(1)
