"""This cluster's hardware for the simulator: maps Slurm's GPU types to entries of the library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from carme import library
from carme.errors import InputError, MissingError
from carme.requests.placement import eligible_nodes
from carme.requests.resource_request import ResourceRequest
from carme.simulator.hardware import Cluster, Gpu
from carme.slurm.gres import total_gpus
from carme.slurm.models import Node
from carme.slurm.snapshot import Snapshot

CORE = "cpu-core"
"""The worker on nodes without GPUs; calibrate it, its figures are generic."""


def known_gpu(kind: str, names: Mapping[str, str]) -> Gpu:
    """The GPU that Slurm calls `kind`, by the site's list or by name. Raises MissingError."""
    if name := names.get(kind) or library.match_gpu(kind):
        return library.gpu(name)
    raise MissingError(
        f"no figures of a GPU that Slurm calls {kind!r}",
        f"an administrator can name it in carme.toml: [service.hardware] {kind} = "
        f'"{max(library.names("gpus"), key=len)}" (carme hardware gpus)',
    )


def default_gpu_type(nodes: Iterable[Node]) -> str:
    """The GPU type that is meant where none is named: the one of which the nodes have most. Empty
    if they have no GPUs."""
    totals = total_gpus(node.gpus for node in nodes)
    return max(totals, key=lambda kind: totals[kind], default="")


def requested_gpu_type(request: ResourceRequest, snapshot: Snapshot) -> str:
    """The GPU type that a request names, or the default of the nodes that it may use; empty if it
    requests no GPU."""
    if not request.gpus:
        return ""
    return request.gpu_type or default_gpu_type(eligible_nodes(request, snapshot))


def worker_count(request: ResourceRequest, snapshot: Snapshot) -> int:
    """The workers that train on a request: its GPUs, or its cores in a partition without GPUs."""
    on_each_node = request.gpus if snapshot.gpus_total(request.partition) else request.cpus
    return request.nodes * max(on_each_node, 1)


def hardware_of(
    snapshot: Snapshot, partition: str, gpu_type: str, names: Mapping[str, str]
) -> Cluster:
    """The nodes of a partition with GPUs of a type; the most common type if none is named."""
    slurm_partition = snapshot.partition(partition)
    if slurm_partition is None:
        visible = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        raise InputError(f"no partition {partition!r}", f"there are {visible or 'none'}")
    types = {
        kind: count for kind, count in snapshot.gpus_total(slurm_partition.name).items() if count
    }
    if gpu_type and gpu_type not in types:
        raise InputError(
            f"{slurm_partition.name} has no {gpu_type!r}", f"it has {', '.join(types) or 'no GPUs'}"
        )
    if not types:
        return _cores(
            [node.cpus for node in snapshot.nodes_in(slurm_partition.name)], slurm_partition.name
        )
    kind = gpu_type or default_gpu_type(snapshot.nodes_in(slurm_partition.name))
    gpu = known_gpu(kind, names)
    counts = [n.gpus[kind] for n in snapshot.nodes_in(slurm_partition.name) if n.gpus.get(kind)]
    default_node = library.node(gpu.default_node)
    node = default_node.model_copy(update={"gpu": gpu, "gpus": max(counts)})
    return Cluster(
        name=re.sub(r"[^a-z0-9._-]", "-", f"{slurm_partition.name}-{kind}".lower())[:64],
        title=f"{kind} of partition {slurm_partition.name}",
        node=node,
        nodes=len(counts),
    )


def held_node_share(
    snapshot: Snapshot, partition: str, gpu_type: str, *, cpus: int, memory_bytes: float
) -> float | None:
    """The larger of a job's shares of a node's processors and memory, for `node_share` of a plan;
    None if there is no such node."""
    kind = gpu_type or default_gpu_type(snapshot.nodes_in(partition))
    nodes = [
        node
        for node in snapshot.nodes_in(partition)
        if node.cpus and node.memory_bytes and (not kind or node.gpus.get(kind))
    ]
    if not nodes:
        return None
    largest = max(nodes, key=lambda node: (node.gpus.get(kind, 0), node.cpus))
    return min(max(cpus / largest.cpus, memory_bytes / largest.memory_bytes), 1.0)


def _cores(counts: list[int], partition: str) -> Cluster:
    default_node = library.node(library.gpu(CORE).default_node)
    node = default_node.model_copy(update={"gpus": max(counts, default=1) or 1})
    nodes = max(len(counts), 1)
    return Cluster(name="cores", title=f"cores of partition {partition}", node=node, nodes=nodes)
