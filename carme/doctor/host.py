"""Checks of the host itself: clock, names, disk, cgroups, certificate."""

import shutil
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from carme.doctor.finding import Finding, failure, fine, skipped, warning
from carme.errors import MissingError, UnavailableError

FULL_PERCENT = 95
ALMOST_PERCENT = 85


def clock(synchronised: str) -> Finding:
    """`synchronised`: what timedatectl says of NTPSynchronized."""
    if synchronised == "yes":
        return fine("clock", "synchronised")
    return warning(
        "clock",
        "nothing keeps the clock; Munge refuses messages that are five minutes off",
        "apt-get install chrony; then: chronyc tracking",
    )


def read_clock() -> Finding:
    if _container():
        return skipped("clock", "a container has its host's clock")
    argv = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    return clock(output(argv).strip())


def names(unknown: list[str], known: int) -> Finding:
    """`unknown`: hosts of the cluster that have no address here."""
    if unknown:
        todo = "add them to DNS or /etc/hosts; the role common does the latter"
        return failure("names", f"no address for {', '.join(unknown)}", todo)
    return fine("names", f"{known} names have addresses")


def read_names(hosts: list[str]) -> Finding:
    unknown = []
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            unknown.append(host)
    return names(unknown, len(hosts))


def disk(folder: Path, used_percent: float) -> Finding:
    name = f"disk {folder}"
    saw = f"{used_percent:.0f} % full"
    if used_percent >= FULL_PERCENT:
        return failure(name, saw, "free some space: carme images prune; old logs in /var/log")
    if used_percent >= ALMOST_PERCENT:
        return warning(name, saw, "plan for more space: carme images prune; old logs in /var/log")
    return fine(name, saw)


def read_disk(folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(there)
    return disk(folder, 100 * usage.used / usage.total)


def certificate(expires: datetime, now: datetime) -> Finding:
    days = (expires - now).days
    saw = f"good until {expires:%Y-%m-%d} ({days} days)"
    todo = "renew it (jupyterhub_certificate) and run: ansible-playbook site.yml --tags jupyterhub"
    if days < 0:
        return failure("certificate", f"ended on {expires:%Y-%m-%d}; browsers refuse it", todo)
    if days < 21:
        return warning("certificate", saw, todo)
    return fine("certificate", saw)


def read_certificate(path: Path, now: datetime | None = None) -> Finding:
    if not path.exists():
        return skipped("certificate", f"no {path} on this host")
    said = output(["openssl", "x509", "-noout", "-enddate", "-in", str(path)])
    text = said.strip().removeprefix("notAfter=").removesuffix(" GMT")
    expires = datetime.strptime(text, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    return certificate(expires, now or datetime.now(UTC))


def unit(name: str, state: str) -> Finding:
    """`state`: what systemctl is-active says."""
    check = f"unit {name}"
    if state == "active":
        return fine(check, "runs")
    return failure(check, f"is {state}", f"journalctl -u {name} -n 50; systemctl restart {name}")


def read_unit(name: str) -> Finding:
    return unit(name, output(["systemctl", "is-active", name], check=False).strip() or "unknown")


def installed_units(wanted: tuple[str, ...]) -> list[str]:
    """Those of `wanted` that this host has a unit file of and starts at boot."""
    found = []
    for name in wanted:
        state = output(["systemctl", "is-enabled", name], check=False).strip()
        if state == "enabled":
            found.append(name)
    return found


def _container() -> bool:
    said = output(["systemd-detect-virt", "--container"], check=False)
    return said.strip() not in ("none", "")


def output(argv: list[str], check: bool = True) -> str:
    """What a program prints; with `check`, its failure is an error."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        raise MissingError(f"the program {argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{argv[0]} gives no answer within 20 s") from None
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnavailableError(f"{argv[0]}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout
