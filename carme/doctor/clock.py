"""The clock: whether something keeps it, and whether the other hosts agree."""

import ctypes
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path

from carme.doctor.finding import Finding, absent, fault, ok, warning
from carme.doctor.host_services import HostServices
from carme.doctor.programs import get
from carme.errors import CarmeError

WRONG_SECONDS = 60.0
"""Munge refuses credentials that are five minutes off; much earlier things look odd."""
ODD_SECONDS = 3.0
_UNSYNCHRONISED = 0x40
_STATUS_OFFSET = 5 * 8
_MOST_PEERS = 64


def clock(is_kept: bool | None, offsets: Mapping[str, float]) -> Finding:
    """`is_kept`: None in a container, whose host keeps the clock; `offsets` of other hosts."""
    todo = "on every host: apt-get install chrony; chronyc tracking; chronyc makestep"
    off = {name: by for name, by in offsets.items() if abs(by) > ODD_SECONDS}
    if off:
        worst = max(off, key=lambda name: abs(off[name]))
        words = ", ".join(f"{name} by {off[name]:+.0f} s" for name in sorted(off)[:5])
        found = f"other clocks differ: {words}; Munge refuses what is 300 s off"
        make = fault if abs(off[worst]) > WRONG_SECONDS else warning
        return make("clock", found, todo)
    peers = f"{len(offsets)} others agree" if offsets else "no other clock to compare with"
    if is_kept is None:
        outside = "the machine around this container keeps it"
        return ok("clock", f"{peers}; {outside}") if offsets else absent("clock", outside)
    if not is_kept:
        words = f"nothing keeps it right ({peers}); Munge refuses what is 300 s off"
        return warning("clock", words, todo)
    return ok("clock", f"kept by NTP; {peers}")


def read_clock(site: HostServices) -> Finding:
    with ThreadPoolExecutor(16) as pool:
        found = dict(pool.map(_offset, _peers(site).items()))
    offsets = {name: by for name, by in found.items() if by is not None}
    return clock(None if _in_container() else _is_kept(), offsets)


def _peers(site: HostServices) -> dict[str, str]:
    """Addresses on other hosts that tell the time in their answers."""
    hub = site.config.hub
    if site.folder:
        return {
            exporter.node: f"http://{exporter.address}:{exporter.ports[0]}/"
            for exporter in site.running("carme-exporter")
            if exporter.node
        }
    found = {} if site.service("hub") else {"hub": f"http://{hub.api_address}:{hub.api_port}/"}
    if site.service("slurmctld") and site.slurm:
        port = site.config.exporter.port
        others = [node for node in site.slurm.nodes if node not in site.nodes][:_MOST_PEERS]
        found |= {node.name: f"http://{node.address}:{port}/" for node in others}
    return found


def _offset(peer: tuple[str, str]) -> tuple[str, float | None]:
    """How far that host's clock is ahead; HTTP tells whole seconds, so half of one is added."""
    name, url = peer
    asked = time.time()
    try:
        said = get(url, seconds=3).headers.get("Date", "")
        theirs = parsedate_to_datetime(said).timestamp() + 0.5
    except (CarmeError, ValueError, TypeError):
        return name, None  # that it does not answer is another check's finding
    return name, theirs - (asked + time.time()) / 2


def _is_kept() -> bool | None:
    """What the kernel knows: NTP, PTP or a hypervisor set it. None where it may not be asked."""
    room = ctypes.create_string_buffer(512)  # struct timex is smaller; nothing is set with modes=0
    state = ctypes.CDLL(None).adjtimex(room)
    if state < 0:
        return None
    (status,) = struct.unpack_from("i", room.raw, _STATUS_OFFSET)
    return not status & _UNSYNCHRONISED


def _in_container(root: Path = Path("/")) -> bool:
    marks = (root / "run/systemd/container", root / ".dockerenv", root / "run/.containerenv")
    return any(mark.exists() for mark in marks)
