"""Traffic of interfaces and InfiniBand ports."""

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from carme_monitoring import kernel_files
from carme_monitoring.collector import Collector, Stage
from carme_monitoring.metrics import Samples, metric_group

_VIRTUAL = re.compile(r"lo|(?:veth|docker|br-|virbr|cali|flannel|cni|tun|tap|dummy|sit|ip6tnl).*")
_STACKED = re.compile(r"(?:bond|team|br|vlan)\d+|.+\.\d+")
"""Names of stacked interfaces, for where sysfs does not show it."""
_INFINIBAND = "32"
"""The kernel's type of an IP interface on InfiniBand or Omni-Path."""
_LOOK_EVERY_SECONDS = 60
_WORD_BYTES = 4
"""InfiniBand counts data in words of four bytes."""
_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
    "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors", "port_rcv_constraint_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    "VL15_dropped", "port_xmit_wait",
)  # fmt: skip
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
METRICS = metric_group(
    "Node",
    ("network_bytes_total", "counter", "device direction",
     "Traffic of an interface; that of bonds, VLANs and bridges is in their members'."),
    ("network_errors_total", "counter", "device direction", "Errors of an interface."),
    ("infiniband_bytes_total", "counter", "device port direction", "Data of a port."),
    ("infiniband_packets_total", "counter", "device port direction", "Packets of a port."),
    ("infiniband_errors_total", "counter", "device port kind", "Errors of a port."),
    ("infiniband_rate_bytes_per_second", "gauge", "device port", "Speed of the link."),
    ("infiniband_active", "gauge", "device port", "1 while the link is up."),
)  # fmt: skip


@dataclass(frozen=True)
class Interface:
    """An Ethernet interface's counters."""

    name: str
    receive_bytes: int
    send_bytes: int
    receive_errors: int
    send_errors: int


@dataclass(frozen=True)
class Port:
    """An InfiniBand port's counters; None is what the adapter does not count."""

    device: str
    port: str
    receive_bytes: int | None
    send_bytes: int | None
    receive_packets: int | None
    send_packets: int | None
    errors: dict[str, int]
    rate_bytes_per_second: float | None
    is_active: bool
    is_ethernet: bool
    """RoCE: its data is in the interface's counters too."""


@dataclass(frozen=True)
class Traffic:
    """One reading of all interfaces and ports."""

    interfaces: tuple[Interface, ...]
    ports: tuple[Port, ...]

    @property
    def receive_bytes(self) -> int:
        """Of the whole node; each byte counts once."""
        return sum(i.receive_bytes for i in self.interfaces) + sum(
            p.receive_bytes or 0 for p in self.ports if not p.is_ethernet
        )

    @property
    def send_bytes(self) -> int:
        """Of the whole node; each byte counts once."""
        return sum(i.send_bytes for i in self.interfaces) + sum(
            p.send_bytes or 0 for p in self.ports if not p.is_ethernet
        )


def read(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Traffic:
    """The node's ports and interfaces, without those whose traffic other interfaces carry."""
    # 1/net: a process in a network namespace of its own would see only itself.
    text = kernel_files.text(proc / "1/net/dev") or kernel_files.text(proc / "net/dev") or ""
    all_ports = tuple(ports(sys))
    has_ports = any(port.receive_bytes is not None and not port.is_ethernet for port in all_ports)
    interfaces = parse_dev(text)
    names = tuple(interface.name for interface in interfaces)
    # Profiles read the traffic twenty times a second; which interfaces are stacked hardly changes.
    own_names = carrier_names(
        names, sys / "class/net", has_ports, time.monotonic() // _LOOK_EVERY_SECONDS
    )
    return Traffic(
        tuple(interface for interface in interfaces if interface.name in own_names), all_ports
    )


@lru_cache(maxsize=4)
def carrier_names(
    names: tuple[str, ...], net: Path, has_ports: bool, _minute: float
) -> frozenset[str]:
    """The interfaces that carry traffic themselves, so that each byte counts once.

    A bond, VLAN or bridge shows what its members show, an IP interface on InfiniBand what the
    port shows. Hardware (a virtual machine's, too) has a device; in a container nothing may have.
    """
    carriers, physical = [], []
    for name in names:
        files_of = kernel_files.names(net / name)
        stacked = any(n.startswith("lower_") or n in ("bonding", "bridge") for n in files_of)
        if stacked or (not files_of and _STACKED.fullmatch(name)):
            continue
        if has_ports and kernel_files.stripped_text(net / name / "type") == _INFINIBAND:
            continue
        carriers.append(name)
        if "device" in files_of:
            physical.append(name)
    return frozenset(physical or carriers)


def parse_dev(text: str) -> list[Interface]:
    """The interfaces of /proc/net/dev that are the node's own."""
    interfaces = []
    for line in text.splitlines()[2:]:
        name, separator, fields = line.partition(":")
        values = [kernel_files.parse_integer(field) for field in fields.split()]
        if not separator or len(values) < 16 or None in values or _VIRTUAL.fullmatch(name.strip()):
            continue
        counts = [value or 0 for value in values]
        interfaces.append(Interface(name.strip(), counts[0], counts[8], counts[2], counts[10]))
    return interfaces


def ports(sys: Path) -> list[Port]:
    """Every port of every InfiniBand or RoCE adapter."""
    ports_read = []
    for device in kernel_files.folders(sys / "class/infiniband"):
        for port in kernel_files.folders(device / "ports"):
            counters = port / "counters"
            rate = _RATE.match(kernel_files.stripped_text(port / "rate"))
            ports_read.append(
                Port(
                    device.name,
                    port.name,
                    _words(counters / "port_rcv_data"),
                    _words(counters / "port_xmit_data"),
                    kernel_files.number(counters / "port_rcv_packets"),
                    kernel_files.number(counters / "port_xmit_packets"),
                    {
                        name: value
                        for name in _ERRORS
                        if (value := kernel_files.number(counters / name)) is not None
                    },
                    float(rate[1]) * 1e9 / 8 if rate else None,
                    kernel_files.stripped_text(port / "state").startswith("4"),
                    kernel_files.stripped_text(port / "link_layer") == "Ethernet",
                )
            )
    return ports_read


class NetworkCollector(Collector[Traffic]):
    """Traffic of the node's interfaces and InfiniBand ports."""

    name, metrics = "network", METRICS
    stage, order = Stage.CHARGED, 4

    def read(self) -> Traffic:
        return read(self.context.roots.proc, self.context.roots.sys)

    def add_samples(self, out: Samples, traffic: Traffic) -> None:
        for interface in traffic.interfaces:
            out.add(
                "carme_network_bytes_total", (interface.name, "receive"), interface.receive_bytes
            )
            out.add("carme_network_bytes_total", (interface.name, "send"), interface.send_bytes)
            out.add(
                "carme_network_errors_total", (interface.name, "receive"), interface.receive_errors
            )
            out.add("carme_network_errors_total", (interface.name, "send"), interface.send_errors)
        for port in traffic.ports:
            key = (port.device, port.port)
            out.add("carme_infiniband_bytes_total", (*key, "receive"), port.receive_bytes)
            out.add("carme_infiniband_bytes_total", (*key, "send"), port.send_bytes)
            out.add("carme_infiniband_packets_total", (*key, "receive"), port.receive_packets)
            out.add("carme_infiniband_packets_total", (*key, "send"), port.send_packets)
            for kind, count in port.errors.items():
                out.add("carme_infiniband_errors_total", (*key, kind), count)
            out.add("carme_infiniband_rate_bytes_per_second", key, port.rate_bytes_per_second)
            out.add("carme_infiniband_active", key, int(port.is_active))


def _words(path: Path) -> int | None:
    value = kernel_files.number(path)
    return None if value is None else value * _WORD_BYTES
