"""The inventory of services: `services.toml`, resolved for one host by its carme.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Literal
from urllib.parse import urlsplit

from carme.config import Config, Section

LOOPBACK = "127.0.0.1"


class ServiceEntry(Section):
    """A row of services.toml, which explains the fields."""

    name: str
    process: str = ""
    unit: str = ""
    description: str
    program: str = ""
    user: str
    local_user: str = ""
    ports: tuple[str | int, ...] = ()
    local_ports: tuple[str | int, ...] = ()
    port_in_unit: bool = False
    ansible_port_variables: tuple[str, ...] = ()
    address: str = ""
    health: str
    on: Literal["head", "nodes", "head after nodes"] = "head"
    restart_on_upgrade: bool = False
    on_restore: Literal["", "stop", "restart"] = ""
    stopped_by_remove: bool = False


@dataclass(frozen=True)
class Service:
    """A service as one host runs it."""

    name: str
    unit: str
    """systemd's name for it; on the one-machine cluster, supervisor's."""
    description: str
    program: str
    """A word of its command line; empty if none is certain."""
    user: str
    ports: tuple[int, ...]
    address: str
    node: str
    """The node that it serves; empty for those of the whole cluster."""
    health: str
    """An HTTP path on the first port, or the name of a check."""
    entry: ServiceEntry


@cache
def entries() -> tuple[ServiceEntry, ...]:
    """Every row, in the order in which the services start."""
    data = tomllib.loads((files("carme.config") / "services.toml").read_text(encoding="utf-8"))
    return tuple(ServiceEntry.model_validate(row) for row in data["services"])


def local_services(config: Config, *, virtual_gpus: bool) -> tuple[Service, ...]:
    """The services of the one-machine cluster."""
    nodes = [node.name for node in config.local.nodes]
    return tuple(
        _service(config, entry, node, offset, is_local=True)
        for entry in entries()
        if entry.process and (virtual_gpus or entry.process != "vgpu")
        for node, offset in _nodes_and_offsets(entry, nodes)
    )


def deployed_services(
    config: Config, node: str, slurm_ports: Mapping[str, int]
) -> tuple[Service, ...]:
    """The services that Ansible can set up on a host whose name in Slurm is `node`.

    `slurm_ports` holds the settings of slurm.conf that name ports, as far as the host has them.
    """
    return tuple(
        _service(config, entry, name, offset, slurm_ports)
        for entry in entries()
        if entry.unit
        for name, offset in _nodes_and_offsets(entry, [node])
    )


def _nodes_and_offsets(entry: ServiceEntry, nodes: Sequence[str]) -> list[tuple[str, int]]:
    """The node of each service of this row, and how far its ports are from the row's."""
    if entry.on == "nodes":
        return [(node, index) for index, node in enumerate(nodes)]
    return [("", len(nodes) if entry.on == "head after nodes" else 0)]


def _service(
    config: Config,
    entry: ServiceEntry,
    node: str,
    port_offset: int,
    slurm_ports: Mapping[str, int] | None = None,
    is_local: bool = False,
) -> Service:
    user = (is_local and entry.local_user) or entry.user
    ports = (is_local and entry.local_ports) or entry.ports
    numbers = [_port(config, port, slurm_ports or {}) for port in ports]
    has_address = entry.address and not is_local
    return Service(
        name=entry.name.format(node=node),
        unit=(entry.process if is_local else entry.unit).format(node=node),
        description=entry.description.format(node=node),
        program=entry.program,
        user=str(attrgetter(user)(config)) if "." in user else user,
        ports=tuple(number + port_offset for number in numbers if number),
        address=str(attrgetter(entry.address)(config)) if has_address else LOOPBACK,
        node=node,
        health=entry.health.format(base_url=config.hub.base_url),
        entry=entry,
    )


def _port(config: Config, port: str | int, slurm_ports: Mapping[str, int]) -> int | None:
    if isinstance(port, int):
        return port
    if "." not in port:
        return slurm_ports.get(port)
    value: object = attrgetter(port)(config)
    if isinstance(value, int):
        return value
    url = urlsplit(str(value))
    return url.port or (443 if url.scheme == "https" else 80)
