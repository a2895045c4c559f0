"""Checks of the host: clock, names, ports, disks, certificate, backup, services' processes."""

import ctypes
import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from carme.config.services import Service
from carme.doctor.check import Finding, absent, call, fault, ok, warning
from carme.doctor.host_services import HostServices
from carme.errors import CarmeError, UnavailableError
from carme.system.health_checks import get, output
from carme.units import format_bytes, format_duration

CERTIFICATE = Path("/etc/carme/tls/hub.crt")
CERTIFICATE_WARNING_DAYS = 21
DISK_FAULT_PERCENT = 95
DISK_WARNING_PERCENT = 85
CLOCK_FAULT_SECONDS = 60.0
CLOCK_WARNING_SECONDS = 3.0
"""Munge rejects credentials at 300 s; other problems start much earlier."""
UNIT_FILES = Path("/etc/systemd/system")
BACKUP_MAX_SECONDS = 2 * 86400
_BACKUP_FOLDER = re.compile(r"^ReadWritePaths=(.+)$", re.MULTILINE)
_ADJTIMEX_UNSYNCHRONISED = 0x40
_ADJTIMEX_STATUS_OFFSET = 5 * 8
_MAX_CLOCKS = 64
_MAX_PORTS_SHOWN = 6


def read_supervisor(site: HostServices) -> Finding:
    """Whether the supervisor of the one-machine cluster's services runs."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3)
        try:
            connection.connect(f"{site.folder}/run/supervisor.sock")
        except OSError as error:
            message = f"does not run, so no service runs ({error.strerror})"
            raise UnavailableError(message) from None
    return ok("supervisor", "runs, and restarts services that end")


def read_unit(site: HostServices, service: Service) -> Finding | None:
    """The fault of a service whose systemd unit does not run; None without systemd."""
    if site.folder:
        return None
    state = call(["systemctl", "is-active", service.unit]).stdout.strip() or "unknown"
    if state == "active":
        return None
    return fault(service.name, f"{service.unit} is {state}", site.repair(service))


def clock(is_synchronised: bool | None, offsets: Mapping[str, float]) -> Finding:
    """`is_synchronised`: None in a container; `offsets`: how far other hosts are ahead."""
    todo = "on every host: apt-get install chrony; chronyc tracking; chronyc makestep"
    offset_clocks = {
        name: offset for name, offset in offsets.items() if abs(offset) > CLOCK_WARNING_SECONDS
    }
    if offset_clocks:
        hosts = ", ".join(
            f"{name} by {offset_clocks[name]:+.0f} s" for name in sorted(offset_clocks)[:5]
        )
        message = f"other clocks differ: {hosts}; Munge fails at 300 s"
        is_fault = max(map(abs, offset_clocks.values())) > CLOCK_FAULT_SECONDS
        return (fault if is_fault else warning)("clock", message, todo)
    comparison = f"{len(offsets)} others agree" if offsets else "no other clock to compare with"
    if is_synchronised is None:
        container = "the host of this container sets it"
        return ok("clock", f"{comparison}; {container}") if offsets else absent("clock", container)
    if not is_synchronised:
        message = f"it is not synchronised ({comparison}); Munge fails at 300 s"
        return warning("clock", message, todo)
    return ok("clock", f"synchronised by NTP; {comparison}")


def read_clock(site: HostServices) -> Finding:
    with ThreadPoolExecutor(16) as pool:
        offsets = dict(pool.map(_clock_offset, _clock_urls(site).items()))
    known_offsets = {name: offset for name, offset in offsets.items() if offset is not None}
    marks = ("/run/systemd/container", "/.dockerenv", "/run/.containerenv")
    is_container = any(Path(mark).exists() for mark in marks)
    return clock(None if is_container else _is_synchronised(), known_offsets)


def _clock_urls(site: HostServices) -> dict[str, str]:
    """Addresses on other hosts whose HTTP responses carry their time."""
    hub = site.config.hub
    if site.folder:
        return {
            exporter.node: f"http://{exporter.address}:{exporter.ports[0]}/"
            for exporter in site.running("carme-exporter")
            if exporter.node
        }
    urls = {} if site.service("hub") else {"hub": f"http://{hub.api_address}:{hub.api_port}/"}
    if site.service("slurmctld") and site.slurm:
        port = site.config.exporter.port
        other_nodes = [node for node in site.slurm.nodes if node not in site.nodes][:_MAX_CLOCKS]
        urls |= {node.name: f"http://{node.address}:{port}/" for node in other_nodes}
    return urls


def _clock_offset(host: tuple[str, str]) -> tuple[str, float | None]:
    """How many seconds that host is ahead. HTTP has whole seconds, so half of one is added."""
    name, url = host
    sent_at = time.time()
    try:
        date = get(url, seconds=3).headers.get("Date", "")
        host_time = parsedate_to_datetime(date).timestamp() + 0.5
    except (CarmeError, ValueError, TypeError):
        return name, None  # another check reports a service that does not answer
    return name, host_time - (sent_at + time.time()) / 2


def _is_synchronised() -> bool | None:
    """Whether NTP, PTP or a hypervisor sets the kernel's clock; None if the kernel refuses."""
    timex = ctypes.create_string_buffer(512)  # larger than struct timex; modes=0 changes nothing
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        return None
    (status,) = struct.unpack_from("i", timex.raw, _ADJTIMEX_STATUS_OFFSET)
    return not status & _ADJTIMEX_UNSYNCHRONISED


def names(unreachable: Iterable[str], unknown: Iterable[str], count: int) -> Finding:
    """`unreachable`: addresses that Slurm uses; `unknown`: names that only jobs use."""
    todo = "add them to DNS or /etc/hosts: site.yml --tags common does the latter"
    if unresolved := sorted(unreachable):
        return fault("names", f"no address for {', '.join(unresolved)}", todo)
    if unresolved := sorted(unknown):
        message = f"no address for {', '.join(unresolved)}: jobs on several nodes cannot connect"
        return warning("names", message, todo)
    return ok("names", f"{count} names and addresses of the cluster's hosts are known")


def read_names(site: HostServices) -> Finding:
    if not site.slurm:
        return absent("names", "no slurm.conf that names the hosts")
    addresses = {node.address for node in site.slurm.nodes} | {site.config.hub.api_address}
    addresses |= {address for _, address in site.slurm.controllers}
    # On the one-machine cluster, node names are not host names.
    nodes = {node.hostname if site.folder else node.name for node in site.slurm.nodes}
    names_for_jobs = (nodes | {name for name, _ in site.slurm.controllers}) - addresses
    unresolved = {name for name in addresses | names_for_jobs if not _resolves(name)}
    return names(
        addresses & unresolved, names_for_jobs & unresolved, len(addresses | names_for_jobs)
    )


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


@dataclass(frozen=True)
class PortOwner:
    """A process that listens on a port; without pid where only root can see it."""

    pid: int | None = None
    command: str = ""
    """Its name and its whole command line."""
    name: str = ""


def ports(
    expected: Mapping[int, tuple[str, str]], owners: Mapping[int, list[PortOwner]], todo: str
) -> Finding:
    """`expected`: service and a word of its command line, by port; `todo`: how to start them."""
    silent = [f"{port} ({expected[port][0]})" for port in sorted(expected) if not owners.get(port)]
    foreign = [
        f"{port} ({service}) by {owner.name}, process {owner.pid}"
        for port, (service, program) in sorted(expected.items())
        for owner in owners.get(port, ())
        if owner.command and program not in owner.command
    ]
    if foreign:
        stop = "stop that process (ss -ltnp shows it), or give the service another port"
        return fault("ports", f"used by other programs: {'; '.join(foreign)}", stop)
    if silent:
        return fault(
            "ports", f"nothing listens on {first_items(silent, _MAX_PORTS_SHOWN, ', ')}", todo
        )
    is_known = all(owner.command for group in owners.values() for owner in group)
    message = f"{len(expected)} open" + (", each used by its service" if is_known else "")
    return ok("ports", message)


def first_items(items: list[str], count: int, separator: str = "; ") -> str:
    """The first `count` items, and how many more there are."""
    remainder = f" and {len(items) - count} more" if len(items) > count else ""
    return separator.join(items[:count]) + remainder


def read_ports(site: HostServices) -> Finding:
    expected = {
        port: (service.name, service.program) for service in site.services for port in service.ports
    }
    if not expected:
        return absent("ports", "no service that listens")
    todo = f"start them: {site.up}" if site.folder else "see the line of that service below"
    return ports(expected, port_owners(expected), todo)


def port_owners(numbers: Container[int]) -> dict[int, list[PortOwner]]:
    """The processes that listen on these TCP ports of this host, on any address."""
    owners: dict[int, list[PortOwner]] = {}
    for connection in psutil.net_connections("tcp"):
        port = connection.laddr.port if connection.laddr else 0
        if connection.status == psutil.CONN_LISTEN and port in numbers:
            owners.setdefault(port, []).append(_port_owner(connection.pid))
    return owners


def _port_owner(pid: int | None) -> PortOwner:
    if not pid:
        return PortOwner()
    try:
        process = psutil.Process(pid)
        name = process.name()
        return PortOwner(pid, " ".join((name, *process.cmdline())), name)
    except psutil.Error:
        return PortOwner(pid)  # it has just ended


def disk(folder: Path, used_percent: float, free: str = "", resource: str = "full") -> Finding:
    """`resource` is the word behind the percentage: `full` for bytes."""
    name = f"disk {folder}"
    message = f"{used_percent:.0f} % {resource}" + (f", {free} free" if free else "")
    todo = "carme images prune; old logs in /var/log; du -xh --max-depth=2 / | sort -h | tail"
    if used_percent >= DISK_FAULT_PERCENT:
        return fault(name, message, f"free some space: {todo}")
    if used_percent >= DISK_WARNING_PERCENT:
        return warning(name, message, f"plan for more space: {todo}")
    return ok(name, message)


def read_disk(folder: Path) -> Finding:
    """Bytes or inodes, whichever are fuller."""
    status = os.statvfs(folder)
    usable = status.f_blocks - status.f_bfree + status.f_bavail
    bytes_percent = 100 * (status.f_blocks - status.f_bfree) / usable if usable else 0.0
    inodes_percent = 100 * (1 - status.f_ffree / status.f_files) if status.f_files else 0.0
    if inodes_percent > bytes_percent:
        return disk(folder, inodes_percent, f"{status.f_favail} files", "of all inodes used")
    return disk(folder, bytes_percent, format_bytes(status.f_bavail * status.f_frsize))


def disks(folders: Iterable[Path]) -> list[Path]:
    """The folders that exist, one for each file system."""
    by_device: dict[int, Path] = {}
    for folder in folders:
        try:
            by_device.setdefault(folder.stat().st_dev, folder)
        except OSError:
            continue  # another check reports a missing folder
    return list(by_device.values())


def certificate(expires: datetime, now: datetime, is_served: bool = True) -> Finding:
    """`is_served`: whether the proxy uses the certificate that is in the file."""
    days = (expires - now).days
    todo = "renew it (jupyterhub_certificate), then: ansible-playbook site.yml --tags jupyterhub"
    if expires < now:
        return fault("certificate", f"expired on {expires:%Y-%m-%d}; browsers reject it", todo)
    message = f"valid until {expires:%Y-%m-%d} ({days} days)"
    if not is_served:
        message = f"the file is {message}, but the proxy still serves another one"
        return warning("certificate", message, "systemctl restart carme-proxy")
    if days < CERTIFICATE_WARNING_DAYS:
        return warning("certificate", message, todo)
    return ok("certificate", message)


def read_certificate(site: HostServices, path: Path = CERTIFICATE) -> Finding:
    """When it expires, and whether the proxy serves it."""
    url = urlsplit(site.config.hub.url)
    if url.scheme != "https":
        return absent("certificate", f"{site.config.hub.url} has no TLS")
    if not path.exists():
        todo = "ansible-playbook site.yml --tags jupyterhub makes or copies it"
        return fault("certificate", f"no {path}", todo)
    text = path.read_text(encoding="ascii", errors="replace")
    try:
        address = (site.config.hub.api_address, url.port or 443)
        served = ssl.get_server_certificate(address, timeout=5)
    except OSError:
        served = ""  # the check of the proxy reports that it does not answer
    expires = end_date(output(["openssl", "x509", "-noout", "-enddate"], stdin=text))
    is_served = not served or _base64_of(served) in _base64_of(text)
    return certificate(expires, datetime.now(UTC), is_served)


def end_date(text: str) -> datetime:
    """The time in openssl's `notAfter=…`."""
    date = text.strip().removeprefix("notAfter=").removesuffix(" GMT")
    return datetime.strptime(date, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)


def _base64_of(certificates: str) -> str:
    return "".join(line for line in certificates.split() if "-" not in line)


def backup(folder: str, newest_seconds: float | None, timer_seconds: float) -> Finding:
    """`newest_seconds`: age of the newest archive, if any; `timer_seconds`: age of the timer."""
    todo = "journalctl -u carme-backup -n 50; systemctl start carme-backup"
    if newest_seconds is None:
        if timer_seconds > BACKUP_MAX_SECONDS:
            message = f"none in {folder}, in {format_duration(timer_seconds)}"
            return warning("backup", message, todo)
        return ok("backup", f"the first one in {folder} is due within a day")
    message = f"the newest in {folder} is {format_duration(newest_seconds)} old"
    if newest_seconds > BACKUP_MAX_SECONDS:
        return warning("backup", message, todo)
    return ok("backup", message)


def read_backup(units: Path = UNIT_FILES) -> Finding:
    """The backups are in the folder that the unit may write to."""
    timer = units / "timers.target.wants/carme-backup.timer"
    try:
        now, enabled_at = time.time(), timer.lstat().st_mtime
        text = (units / "carme-backup.service").read_text(encoding="utf-8")
    except FileNotFoundError:
        return absent("backup")
    match = _BACKUP_FOLDER.search(text)
    if not match:
        todo = "ansible-playbook site.yml --tags backup"
        return warning("backup", "carme-backup.service names no folder", todo)
    archives = Path(match[1]).glob("carme-*.tar.gz")
    newest = max((path.stat().st_mtime for path in archives), default=None)
    return backup(match[1], None if newest is None else now - newest, now - enabled_at)
