"""The settings of Slurm's configuration files that checks need."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carme.errors import CarmeError
from carme.slurm.gres import gpus_of_gres, parse_gres
from carme.slurm.hostlist import expand

DEFAULT = "etc/slurm/slurm.conf"
FETCHED = (
    "run/slurm/conf",
    "var/lib/slurm/conf-cache",
    "var/lib/slurm/*/conf-cache",
    "var/spool/slurm*/conf-cache",
)
"""Where slurmd stores files that it fetched from the controller ("configless")."""
_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)")
_HOST = re.compile(r"([^(),\s]+)(?:\(([^()]+)\))?")


@dataclass(frozen=True)
class ConfiguredNode:
    """A node as slurm.conf declares it."""

    name: str
    hostname: str
    address: str
    port: int
    gpus: int


@dataclass(frozen=True)
class SlurmConf:
    """The hosts and ports in slurm.conf."""

    cluster: str
    controllers: tuple[tuple[str, str], ...]
    """Name and address, the primary first."""
    controller_port: int
    database_port: int
    munge_socket: str
    nodes: tuple[ConfiguredNode, ...]

    def on(self, hostname: str) -> tuple[ConfiguredNode, ...]:
        """The nodes on the host of this name."""
        short = hostname.split(".")[0]
        return tuple(n for n in self.nodes if short in (n.hostname.split(".")[0], n.name))


def find(configured: Path | None, root: Path = Path("/")) -> Path | None:
    """The first readable slurm.conf of this host: configured, installed or fetched."""
    fetched = (path for folder in FETCHED for path in root.glob(f"{folder}/slurm.conf"))
    candidates = [configured] if configured else [root / DEFAULT, *fetched]
    return next((path for path in candidates if os.access(path, os.R_OK)), None)


def read(path: Path) -> SlurmConf | None:
    """The file at `path`; None if it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CarmeError):
        return None


def parse(text: str) -> SlurmConf:
    """The text of slurm.conf; the node name DEFAULT sets defaults for later lines."""
    general: dict[str, str] = {}
    controllers: list[tuple[str, str]] = []
    nodes: list[ConfiguredNode] = []
    defaults: dict[str, str] = {}
    for pairs in _lines(text):
        if "nodename" in pairs:
            if pairs["nodename"].upper() == "DEFAULT":
                defaults |= pairs
            else:
                nodes += _nodes({**defaults, **pairs}, general.get("slurmdport", "6818"))
        elif "slurmctldhost" in pairs:
            hosts = _HOST.findall(pairs["slurmctldhost"])
            controllers += [(name, address or name) for name, address in hosts]
        elif "partitionname" not in pairs:
            general |= pairs
    socket = re.search(r"socket=([^,]+)", general.get("authinfo", ""))
    return SlurmConf(
        cluster=general.get("clustername", ""),
        controllers=tuple(controllers),
        controller_port=_port(general.get("slurmctldport", ""), 6817),
        database_port=_port(general.get("accountingstorageport", ""), 6819),
        munge_socket=socket[1] if socket else "",
        nodes=tuple(nodes),
    )


def settings(text: str) -> dict[str, str]:
    """The keys of a file such as cgroup.conf, in lower case, with their values."""
    return {key: value for pairs in _lines(text) for key, value in pairs.items()}


def device_files(gres: str, node: str) -> tuple[str, ...]:
    """The GPUs' device files in gres.conf for the node; none with AutoDetect."""
    files: list[str] = []
    for pairs in _lines(gres):
        is_for_node = "nodename" not in pairs or node in expand(pairs["nodename"])
        if is_for_node and pairs.get("name", "").lower() == "gpu" and "file" in pairs:
            files += expand(pairs["file"])
    return tuple(files)


def _lines(text: str) -> Iterator[dict[str, str]]:
    joined_lines = re.sub(r"\\\n", " ", text)
    for line in joined_lines.splitlines():
        pairs = {k.lower(): v.strip('"') for k, v in _PAIR.findall(line.partition("#")[0])}
        if pairs:
            yield pairs


def _nodes(pairs: dict[str, str], port: str) -> Iterator[ConfiguredNode]:
    names = expand(pairs["nodename"])
    hostnames = _each(pairs.get("nodehostname", pairs["nodename"]), len(names))
    addresses = _each(pairs.get("nodeaddr", ",".join(hostnames)), len(names))
    ports = _each(pairs.get("port", port), len(names))
    gpus = sum(gpus_of_gres(parse_gres(pairs.get("gres", ""))).values())
    for name, host, address, number in zip(names, hostnames, addresses, ports, strict=True):
        yield ConfiguredNode(name, host, address, _port(number, 6818), gpus)


def _each(text: str, count: int) -> tuple[str, ...]:
    """A value for each node: one value applies to all of them."""
    values = expand(text)
    return values if len(values) == count else (values[0] if values else "",) * count


def _port(text: str, default: int) -> int:
    first = text.partition("-")[0]
    return int(first) if first.isdigit() else default
