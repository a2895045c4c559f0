"""`scontrol --oneliner`, as Slurm 22.05 prints it."""

from carme.slurm.parse import (
    parse_nodes,
    parse_partitions,
    parse_reservations,
    parse_test_only,
    parse_version,
)
from carme.slurm.states import NodeState
from support.slurm_samples import NODES, PARTITIONS, RESERVATIONS


def test_nodes() -> None:
    gpu, cpu = parse_nodes(NODES)
    assert gpu.name == "gpu01"
    assert (gpu.state, gpu.flags) == (NodeState.MIXED, ("PLANNED",))
    assert (gpu.cpus, gpu.cpus_used) == (8, 3)
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (8000 << 20, 2000 << 20)
    assert (gpu.gpus, gpu.gpus_used) == ({"virtual-a100": 4}, {"virtual-a100": 3})
    assert gpu.gpu_indices_used == {"virtual-a100": (0, 1, 3)}
    assert (gpu.partitions, gpu.features) == (("gpu", "all"), ("fast", "big"))
    assert (gpu.address, gpu.slurm_version) == ("10.0.0.1", "22.05.8")
    assert (cpu.state, cpu.flags, cpu.open) == (NodeState.IDLE, ("DRAIN",), False)
    assert cpu.cpus == 8, "the reason's text is not a field"
    assert cpu.reason == "bad disk, CPUTot=9 see a=b"
    assert cpu.gpus == cpu.gpus_used == {}


def test_partitions() -> None:
    gpu, cpu = parse_partitions(PARTITIONS)
    assert (gpu.default, gpu.up, gpu.hidden) == (True, True, False)
    assert (gpu.max_seconds, gpu.default_seconds) == (115_200, 3600)
    assert (gpu.nodes, gpu.total_cpus, gpu.gpus) == (("gpu01", "gpu02"), 16, {"a100": 8})
    assert (gpu.allow_accounts, gpu.allow_groups) == (("lab", "guests"), ())
    assert (gpu.max_nodes, gpu.max_cpus_per_node, gpu.priority_tier) == (4, None, 3)
    assert (gpu.default_memory_per_cpu_bytes, gpu.max_memory_per_node_bytes) == (500 << 20, None)
    assert (cpu.default, cpu.up, cpu.hidden) == (False, False, True)
    assert (cpu.max_seconds, cpu.default_seconds, cpu.deny_accounts) == (None, None, ("guests",))


def test_reservations() -> None:
    (reservation,) = parse_reservations(RESERVATIONS)
    assert (reservation.name, reservation.nodes, reservation.maintenance) == (
        "maint",
        ("gpu01", "gpu02"),
        True,
    )
    assert (reservation.starts_at, reservation.ends_at) == (1794801937, 1794805537)
    assert (reservation.users, reservation.accounts, reservation.partition) == (
        ("sla", "slb"),
        (),
        "",
    )
    assert parse_reservations("No reservations in the system\n") == ()


def test_expected_start() -> None:
    printed = (
        "sbatch: Job 10 to start at 2026-11-19T05:05:06 "
        "using 2 processors on nodes gpu[01-02] in partition gpu\n"
    )
    expected = parse_test_only(printed, asked_at=5)
    assert expected is not None
    assert (expected.starts_at, expected.nodes, expected.partition) == (
        1795064706,
        ("gpu01", "gpu02"),
        "gpu",
    )
    # Older releases print neither the word `nodes` nor the partition.
    old = parse_test_only(
        "sbatch: Job 4 to start at 2020-01-01T00:00:00 using 1 processors on n1", 5
    )
    assert old is not None
    assert (old.starts_at, old.nodes) == (1577836800, ("n1",))
    assert parse_test_only("allocation failure: Invalid account", 5) is None


def test_version() -> None:
    assert parse_version("slurm-wlm 22.05.8\n") == "22.05.8"
    assert parse_version("slurm 24.11") == "24.11"
    assert parse_version("no") == ""
