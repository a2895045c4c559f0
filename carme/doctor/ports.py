"""Ports: every service that should listen does, and nobody else holds its port."""

from collections.abc import Container, Mapping
from dataclasses import dataclass

import psutil

from carme.doctor.finding import Finding, absent, fault, ok
from carme.doctor.host_services import HostServices

_MOST = 6


@dataclass(frozen=True)
class PortOwner:
    """Who listens on a port; without a process where only root could see it."""

    pid: int | None = None
    command: str = ""
    """Its name and its whole command line."""
    name: str = ""


def ports(
    wanted: Mapping[int, tuple[str, str]], holders: Mapping[int, list[PortOwner]], up: str
) -> Finding:
    """`wanted`: service and a word of its command line, by port; `up`: how to start services."""
    silent, taken = [], []
    for number, (service, program) in sorted(wanted.items()):
        found = holders.get(number, [])
        if not found:
            silent.append(f"{number} ({service})")
        for holder in found:
            if holder.command and program not in holder.command:
                taken.append(f"{number} ({service}) by {holder.name}, process {holder.pid}")
    if taken:
        todo = "stop that process (ss -ltnp shows it), or give the service another port"
        return fault("ports", f"held by strangers: {'; '.join(taken)}", todo)
    if silent:
        more = f" and {len(silent) - _MOST} more" if len(silent) > _MOST else ""
        return fault("ports", f"nobody listens on {', '.join(silent[:_MOST])}{more}", up)
    seen = all(holder.command for found in holders.values() for holder in found)
    return ok("ports", f"{len(wanted)} open" + (", each held by its service" if seen else ""))


def read_ports(site: HostServices) -> Finding:
    wanted = {
        port: (service.name, service.program) for service in site.services for port in service.ports
    }
    if not wanted:
        return absent("ports", "no service that listens")
    up = f"start them: {site.up}" if site.folder else "see the line of that service below"
    return ports(wanted, listeners(wanted), up)


def listeners(wanted: Container[int]) -> dict[int, list[PortOwner]]:
    """Who listens on those ports of this host, on whatever address."""
    holders: dict[int, list[PortOwner]] = {}
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            port = connection.laddr.port
            if port in wanted:
                holders.setdefault(port, []).append(_holder(connection.pid))
    return holders


def _holder(pid: int | None) -> PortOwner:
    if not pid:
        return PortOwner()
    try:
        process = psutil.Process(pid)
        name = process.name()
        return PortOwner(pid, " ".join((name, *process.cmdline())), name)
    except psutil.Error:
        return PortOwner(pid)  # it ended just now
