"""`scontrol --oneliner` and `sbatch --test-only`: what administrators and Slurm itself write.

A job's line is not read this way: a user who puts ` UserId=other(1001)` into the job's name would
be believed.
"""

import re
from collections.abc import Iterator

from carme.slurm.gres import gpus_of_gres, gpus_of_tres, parse_gres, parse_tres
from carme.slurm.models import ExpectedStart, Node, Partition, Reservation
from carme.slurm.parse.gpus import indices_by_type
from carme.slurm.parse.payload import mixed_or
from carme.slurm.parse.values import clean, hosts, integer, memory, names, seconds, unix_time
from carme.slurm.states import parse_node_state

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_/:]*)=")
_REASON_BY = re.compile(r"\s*\[[^\[\]@]+@[^\[\]]*\]\s*$")
_TEST_ONLY = re.compile(
    r"Job \S+ to start at (\S+)(?: using \d+ processors)?(?: on(?: nodes)? (\S+))?"
    r"(?: in partition (\S+))?"
)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """The partitions in `scontrol --oneliner show partitions`."""
    return tuple(_partition(raw) for raw in _records(text, "PartitionName"))


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes in `scontrol --oneliner --details show nodes`."""
    return tuple(_node(raw) for raw in _records(text, "NodeName"))


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """The reservations in `scontrol --oneliner show reservations`."""
    return tuple(_reservation(raw) for raw in _records(text, "ReservationName"))


def parse_test_only(text: str, asked_at: float) -> ExpectedStart | None:
    """The expected start in the output of `sbatch --test-only`; None if there is none."""
    match = _TEST_ONLY.search(text)
    starts_at = unix_time(match[1]) if match else None
    if not match or starts_at is None:
        return None
    nodes, partition = hosts(match[2] or ""), match[3] or ""
    return ExpectedStart(starts_at=starts_at, nodes=nodes, partition=partition, asked_at=asked_at)


def parse_version(text: str) -> str:
    """`22.05.8` in `slurm 22.05.8` or `slurm-wlm 22.05.8`; empty if there is none."""
    match = _VERSION.search(text)
    return match[0] if match else ""


def _records(text: str, first_key: str) -> Iterator[dict[str, str]]:
    """A dictionary a line. The first of two equal keys counts: free text stands at the end."""
    for line in text.split("\n"):
        if not line.startswith(f"{first_key}="):
            continue
        # Splitting on one group gives nothing, key, value, key, value, …
        _, *parts = _KEY.split(line)
        values = (value.strip() for value in reversed(parts[1::2]))
        raw = dict(zip(reversed(parts[::2]), values, strict=True))
        # The reason is the one free text that is shown to people, so it is kept whole.
        if "Reason" in raw:
            raw["Reason"] = line.partition(" Reason=")[2].partition(" Comment=")[0]
        if raw[first_key]:
            yield raw


def _partition(raw: dict[str, str]) -> Partition:
    get = raw.get
    return Partition(
        name=raw["PartitionName"],
        state=get("State", ""),
        default=get("Default") == "YES",
        hidden=get("Hidden") == "YES",
        nodes=hosts(get("Nodes", "")),
        total_nodes=integer(get("TotalNodes", "")) or 0,
        total_cpus=integer(get("TotalCPUs", "")) or 0,
        gpus=gpus_of_tres(parse_tres(get("TRES", ""))),
        max_seconds=seconds(get("MaxTime", "")),
        default_seconds=seconds(get("DefaultTime", "")),
        min_nodes=integer(get("MinNodes", "")) or 0,
        max_nodes=integer(get("MaxNodes", "")),
        max_cpus_per_node=integer(get("MaxCPUsPerNode", "")),
        default_memory_per_cpu_bytes=memory(get("DefMemPerCPU", "")),
        default_memory_per_node_bytes=memory(get("DefMemPerNode", "")),
        max_memory_per_cpu_bytes=memory(get("MaxMemPerCPU", "")),
        max_memory_per_node_bytes=memory(get("MaxMemPerNode", "")),
        priority_tier=integer(get("PriorityTier", "")) or 0,
        qos=clean(get("QoS", "")),
        allow_accounts=names(get("AllowAccounts", "")),
        deny_accounts=names(get("DenyAccounts", "")),
        allow_groups=names(get("AllowGroups", "")),
        allow_qos=names(get("AllowQos", "")),
        deny_qos=names(get("DenyQos", "")),
    )


def _node(raw: dict[str, str]) -> Node:
    get = raw.get
    state, flags = parse_node_state(get("State", ""))
    cpus, used = integer(get("CPUTot", "")) or 0, integer(get("CPUAlloc", "")) or 0
    gpus_used = gpus_of_gres(parse_gres(get("GresUsed", "")))
    return Node(
        name=raw["NodeName"],
        state=mixed_or(state, cpus, used),
        flags=flags,
        state_text=get("State", "").upper(),
        reason=_REASON_BY.sub("", clean(get("Reason", ""))),
        address=get("NodeAddr", ""),
        partitions=names(get("Partitions", "")),
        features=names(get("AvailableFeatures", "")),
        cpus=cpus,
        cpus_used=used,
        memory_bytes=memory(get("RealMemory", "")) or 0,
        memory_used_bytes=memory(get("AllocMem", "")) or 0,
        gpus=gpus_of_gres(parse_gres(get("Gres", ""))),
        gpus_used={kind: count for kind, count in gpus_used.items() if count},
        gpu_indices_used=indices_by_type(get("GresUsed", "")),
        slurm_version=get("Version", ""),
    )


def _reservation(raw: dict[str, str]) -> Reservation:
    get = raw.get
    return Reservation(
        name=raw["ReservationName"],
        starts_at=unix_time(get("StartTime", "")),
        ends_at=unix_time(get("EndTime", "")),
        nodes=hosts(get("Nodes", "")),
        node_count=integer(get("NodeCnt", "")) or 0,
        partition=clean(get("PartitionName", "")),
        flags=tuple(sorted(names(get("Flags", "")))),
        users=names(get("Users", "")),
        accounts=names(get("Accounts", "")),
        groups=names(get("Groups", "")),
    )
