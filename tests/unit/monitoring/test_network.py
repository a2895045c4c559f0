"""Interfaces and ports: each byte of the node is counted once."""

from pathlib import Path

import pytest

from carme_monitoring.collectors import network

HEAD = "Inter-|   Receive\n face |bytes\n"
PHYSICAL = {"device": "", "type": "1"}


def node(root: Path, interfaces: dict[str, dict[str, str] | None], ports: int = 0) -> list[str]:
    """The interfaces that count; None is one that sysfs does not know."""
    lines = [f"{name}: 100 {'0 ' * 7} 50 {'0 ' * 7}" for name in interfaces]
    (root / "proc/1/net").mkdir(parents=True)
    (root / "proc/1/net/dev").write_text(HEAD + "\n".join(lines) + "\n")
    for name, files in interfaces.items():
        for file, text in (files or {}).items():
            path = root / "sys/class/net" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for port in range(ports):
        counters = root / f"sys/class/infiniband/mlx5_{port}/ports/1/counters"
        counters.mkdir(parents=True)
        (counters / "port_rcv_data").write_text("25\n")
        (counters / "port_xmit_data").write_text("25\n")
        (counters.parent / "link_layer").write_text("InfiniBand\n")
    traffic = network.read(root / "proc", root / "sys")
    names = [one.name for one in traffic.interfaces]
    assert traffic.receive_bytes == 100 * (len(names) + ports)
    return names


@pytest.mark.parametrize(
    ("interfaces", "counted"),
    [
        (
            {"lo": {"type": "772"}, "eno1": PHYSICAL, "eno2": PHYSICAL,
             "bond0": {"bonding": "", "lower_eno1": "", "lower_eno2": ""},
             "bond0.7": {"lower_bond0": ""}, "br0": {"bridge": "", "lower_bond0.7": ""},
             "wg0": {"type": "65534"}},
            ["eno1", "eno2"],
        ),
        ({"eth0": PHYSICAL, "tailscale0": {"type": "65534"}}, ["eth0"]),
        ({"eth0": PHYSICAL | {"lower_enP1s1": ""}, "enP1s1": PHYSICAL}, ["enP1s1"]),
        ({"host0": {"type": "1"}, "vlan5": {"lower_host0": ""}}, ["host0"]),
        ({"eth0": None, "ib0": None, "eth0.5": None, "bond0": None, "br0": None}, ["eth0", "ib0"]),
        ({"ib0": {"device": "", "type": "32"}}, ["ib0"]),
    ],
    ids=["bond, VLAN, bridge", "virtual machine", "accelerated virtual machine", "container",
         "no sysfs", "InfiniBand without port counters"],
)  # fmt: skip
def test_interfaces_that_carry_traffic_themselves(
    tmp_path: Path, interfaces: dict[str, dict[str, str] | None], counted: list[str]
) -> None:
    assert node(tmp_path, interfaces) == counted


def test_ip_over_infiniband_is_in_the_ports(tmp_path: Path) -> None:
    infiniband = {"device": "", "type": "32\n"}
    interfaces = {"host0": {"type": "1\n"}, "ib0": infiniband, "ib0.8001": {"type": "32\n"}}
    assert node(tmp_path, interfaces, ports=2) == ["host0"]
