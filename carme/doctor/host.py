"""Checks of the host itself: names, disks, certificate, systemd's units."""

import os
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from carme.config.services import Service
from carme.doctor.finding import Finding, absent, fault, ok, warning
from carme.doctor.host_services import HostServices
from carme.doctor.programs import call, output
from carme.units import format_bytes

CERTIFICATE = Path("/etc/carme/tls/hub.crt")
FULL_PERCENT = 95
ALMOST_PERCENT = 85
SOON_DAYS = 21


def names(unreachable: Iterable[str], unknown: Iterable[str], known: int) -> Finding:
    """`unreachable`: addresses that Slurm uses; `unknown`: names that only jobs use."""
    todo = "add them to DNS or /etc/hosts: site.yml --tags common does the latter"
    if lost := sorted(unreachable):
        return fault("names", f"no address for {', '.join(lost)}", todo)
    if odd := sorted(unknown):
        words = f"no address for {', '.join(odd)}: jobs on several nodes do not find each other"
        return warning("names", words, todo)
    return ok("names", f"{known} names and addresses of the cluster's hosts are known")


def read_names(site: HostServices) -> Finding:
    if not site.slurm:
        return absent("names", "no slurm.conf that names the hosts")
    used = {node.address for node in site.slurm.nodes} | {site.config.hub.api_address}
    used |= {address for _, address in site.slurm.controllers}
    # On one machine the nodes' names are no host names.
    nodes = {node.hostname if site.folder else node.name for node in site.slurm.nodes}
    spoken = (nodes | {name for name, _ in site.slurm.controllers}) - used
    lost = {name for name in used if not _resolves(name)}
    unknown = {name for name in spoken if not _resolves(name)}
    return names(lost, unknown, len(used | spoken))


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def disk(folder: Path, used_percent: float, free: str = "", what: str = "") -> Finding:
    """`what` is full: bytes, or the entries for files."""
    name = f"disk {folder}"
    found = f"{used_percent:.0f} % {what or 'full'}" + (f", {free} free" if free else "")
    todo = "carme images prune; old logs in /var/log; du -xh --max-depth=2 / | sort -h | tail"
    if used_percent >= FULL_PERCENT:
        return fault(name, found, f"free some space: {todo}")
    if used_percent >= ALMOST_PERCENT:
        return warning(name, found, f"plan for more space: {todo}")
    return ok(name, found)


def read_disk(folder: Path) -> Finding:
    """Bytes or file entries, whichever are fuller."""
    found = os.statvfs(folder)
    usable = found.f_blocks - found.f_bfree + found.f_bavail
    full = 100 * (found.f_blocks - found.f_bfree) / usable if usable else 0.0
    entries = 100 * (1 - found.f_ffree / found.f_files) if found.f_files else 0.0
    if entries > full:
        return disk(folder, entries, f"{found.f_favail} files", "of all file entries used")
    return disk(folder, full, format_bytes(found.f_bavail * found.f_frsize))


def disks(folders: Iterable[Path]) -> list[Path]:
    """Those that are there, one for each file system."""
    found: dict[int, Path] = {}
    for folder in folders:
        try:
            found.setdefault(folder.stat().st_dev, folder)
        except OSError:
            continue  # that it is missing is another check's finding
    return list(found.values())


def certificate(expires: datetime, now: datetime, is_served: bool = True) -> Finding:
    """`is_served`: whether the proxy shows the certificate that the file holds."""
    days = (expires - now).days
    todo = "renew it (jupyterhub_certificate), then: ansible-playbook site.yml --tags jupyterhub"
    if expires < now:
        return fault("certificate", f"ended on {expires:%Y-%m-%d}; browsers refuse it", todo)
    found = f"good until {expires:%Y-%m-%d} ({days} days)"
    if not is_served:
        words = f"the file is {found}, but the proxy still shows another one"
        return warning("certificate", words, "systemctl restart carme-proxy")
    return warning("certificate", found, todo) if days < SOON_DAYS else ok("certificate", found)


def read_certificate(site: HostServices, path: Path = CERTIFICATE) -> Finding:
    """Its dates, and whether it is the one that people get."""
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
        served = ""  # that the proxy is silent is its own check's finding
    expires = end_date(output(["openssl", "x509", "-noout", "-enddate"], stdin=text))
    is_served = not served or _body(served) in _body(text)
    return certificate(expires, datetime.now(UTC), is_served)


def end_date(said: str) -> datetime:
    """`said`: openssl's notAfter=…"""
    text = said.strip().removeprefix("notAfter=").removesuffix(" GMT")
    return datetime.strptime(text, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)


def _body(certificates: str) -> str:
    return "".join(line for line in certificates.split() if "-" not in line)


def unit(service: Service, state: str, todo: str) -> Finding | None:
    """The fault of a service whose unit does not run; `state`: systemctl is-active's word."""
    if state == "active":
        return None
    return fault(service.name, f"{service.unit} is {state}", todo)


def read_unit(site: HostServices, service: Service) -> Finding | None:
    """The same, asked of systemd; nothing to say where there is none."""
    if site.folder:
        return None
    state = call(["systemctl", "is-active", service.unit]).out.strip() or "unknown"
    return unit(service, state, site.repair(service))
