"""Slurm's configuration files as far as checks need them: text in, frozen model out."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carme.slurm.gres import gpus_of_gres, parse_gres
from carme.slurm.hostlist import expand

DEFAULT = "etc/slurm/slurm.conf"
FETCHED = (
    "run/slurm/conf",
    "var/lib/slurm/conf-cache",
    "var/lib/slurm/*/conf-cache",
    "var/spool/slurm*/conf-cache",
)
"""Where slurmd keeps what it fetched from the controller ("configless")."""
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
    """What slurm.conf says of the hosts and how they talk."""

    cluster: str
    controllers: tuple[tuple[str, str], ...]
    """Name and address, the first one in charge."""
    controller_port: int
    database_port: int
    munge_socket: str
    nodes: tuple[ConfiguredNode, ...]

    def on(self, hostname: str) -> tuple[ConfiguredNode, ...]:
        """The nodes that the host of this name is."""
        short = hostname.split(".")[0]
        return tuple(n for n in self.nodes if short in (n.hostname.split(".")[0], n.name))


def find(configured: Path | None, root: Path = Path("/")) -> Path | None:
    """The slurm.conf of this host that we may read, wherever it came from."""
    if configured:
        wanted = [configured]
    else:
        fetched = (path for place in FETCHED for path in root.glob(f"{place}/slurm.conf"))
        wanted = [root / DEFAULT, *fetched]
    return next((path for path in wanted if os.access(path, os.R_OK)), None)


def parse(text: str) -> SlurmConf:
    """slurm.conf; the node name DEFAULT gives later lines what they do not say."""
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
            controllers += _controllers(pairs["slurmctldhost"])
        elif "partitionname" not in pairs:
            general |= pairs
    return SlurmConf(
        cluster=general.get("clustername", ""),
        controllers=tuple(controllers),
        controller_port=_port(general.get("slurmctldport", ""), 6817),
        database_port=_port(general.get("accountingstorageport", ""), 6819),
        munge_socket=_socket(general.get("authinfo", "")),
        nodes=tuple(nodes),
    )


def settings(text: str) -> dict[str, str]:
    """The keys of a file such as cgroup.conf, in lower case, with their values."""
    return {key: value for pairs in _lines(text) for key, value in pairs.items()}


def device_files(gres: str, node: str) -> tuple[str, ...]:
    """The GPUs' device files that gres.conf names for the node; none where they are detected."""
    found: list[str] = []
    for pairs in _lines(gres):
        mine = "nodename" not in pairs or node in expand(pairs["nodename"])
        if mine and pairs.get("name", "").lower() == "gpu" and "file" in pairs:
            found += expand(pairs["file"])
    return tuple(found)


def _lines(text: str) -> Iterator[dict[str, str]]:
    whole = re.sub(r"\\\n", " ", text)
    for line in whole.splitlines():
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
    """One value for each node: several nodes may share one."""
    found = expand(text)
    return found if len(found) == count else (found[0] if found else "",) * count


def _controllers(text: str) -> Iterator[tuple[str, str]]:
    for name, address in _HOST.findall(text):
        yield name, address or name


def _port(text: str, default: int) -> int:
    first = text.partition("-")[0]
    return int(first) if first.isdigit() else default


def _socket(authinfo: str) -> str:
    found = re.search(r"socket=([^,]+)", authinfo)
    return found[1] if found else ""
