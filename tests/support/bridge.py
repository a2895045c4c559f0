"""The network of the test hosts: a separate bridge with access to the outside."""

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
    """The bridge of the test hosts, with a subnet that is free on this machine."""

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
        """The address of the host with this number."""
        return str(self.addresses[10 + number])

    def set_up(self, note: Path) -> None:
        """Create the bridge, and record it for `take_down`."""
        note.write_text(str(self.addresses))
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", f"{self.gateway}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        run(["iptables", *_masquerade("-A", str(self.addresses))])


def take_down(note: Path) -> None:
    """Remove the bridge, its firewall rule, and interfaces of killed machines."""
    if note.exists():
        subprocess.run(["iptables", *_masquerade("-D", note.read_text())], capture_output=True)
    # The kernel may not have removed a killed machine's interfaces yet.
    links = json.loads(run(["ip", "-json", "link"]))
    ends = [link["ifname"] for link in links if link["ifname"].startswith("vb-ct-")]
    for name in (*ends, BRIDGE):
        subprocess.run(["ip", "link", "del", name], capture_output=True)


def _masquerade(verb: str, network: str) -> tuple[str, ...]:
    return (
        *("-t", "nat", verb, "POSTROUTING", "-s", network, "!", "-d", network),
        *("-j", "MASQUERADE"),
    )
