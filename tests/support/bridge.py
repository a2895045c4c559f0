"""The network of the test hosts: a bridge of their own, with a way out."""

import ipaddress
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from carme.system.programs import run

BRIDGE = "carmetest0"
SUBNETS = [f"10.{number}.0.0/24" for number in range(77, 100)]


@dataclass(frozen=True)
class Network:
    """Addresses that nobody on this machine uses."""

    addresses: ipaddress.IPv4Network

    @classmethod
    def free(cls) -> "Network":
        used = [
            ipaddress.ip_network(route["dst"], strict=False)
            for route in json.loads(run(["ip", "-4", "-json", "route"]))
            if route["dst"] != "default"
        ]
        return cls(
            next(
                network
                for network in map(ipaddress.IPv4Network, SUBNETS)
                if not any(network.overlaps(other) for other in used)
            )
        )

    @property
    def gateway(self) -> str:
        return str(self.addresses[1])

    def address(self, number: int) -> str:
        """That of the host with this number."""
        return str(self.addresses[10 + number])

    def set_up(self, note: Path) -> None:
        """The bridge; the note is for whoever takes it down."""
        note.write_text(str(self.addresses))
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", f"{self.gateway}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        run(["iptables", *_masquerade("-A", str(self.addresses))])


def take_down(note: Path) -> None:
    """The bridge, its rule, and what machines that were killed left of it."""
    if note.exists():
        subprocess.run(["iptables", *_masquerade("-D", note.read_text())], capture_output=True)
    # The kernel takes its time with the ends that belonged to a machine.
    links = json.loads(run(["ip", "-json", "link"]))
    ends = [link["ifname"] for link in links if link["ifname"].startswith("vb-ct-")]
    for name in (*ends, BRIDGE):
        subprocess.run(["ip", "link", "del", name], capture_output=True)


def _masquerade(verb: str, network: str) -> tuple[str, ...]:
    return (
        *("-t", "nat", verb, "POSTROUTING", "-s", network, "!", "-d", network),
        *("-j", "MASQUERADE"),
    )
