"""Getting the data: while training, or all of it at the start, alone or with others."""

from __future__ import annotations

from math import log2

from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import BasePlan, require
from carme.simulator.workloads.workload import Workload


def pick_loader(workload: Workload, wanted: str | None) -> str:
    """The loading method by name, or the first."""
    loaders = workload.dataset.loaders
    require(
        wanted is None or wanted in loaders,
        f"no loading method {wanted!r} for {workload.name}",
        f"it has {', '.join(loaders) or 'none'}",
    )
    return wanted or next(iter(loaders), "")


def input_seconds(workload: Workload, cluster: Cluster, plan: BasePlan, global_batch: int) -> float:
    """Reading one step's samples: what the readers parse, and what storage gives to all."""
    data = workload.dataset
    loader = pick_loader(workload, plan.loader)
    if data.at_start or not data.sample_bytes:
        return 0.0
    nodes = -(-plan.gpus // cluster.node.gpus)
    size = global_batch * data.sample_bytes
    rates = []
    if cluster.storage:
        rates.append(min(cluster.storage.bandwidth, cluster.storage.reader_bandwidth * nodes))
    if loader:
        rates.append(data.loaders[loader].bytes_per_second * plan.loaders_per_gpu * plan.gpus)
    return size / min(rates) if rates else 0.0


def skew_seconds(workload: Workload, plan: BasePlan) -> float:
    """How long the first reader waits for the last before weights can be broadcast."""
    data = workload.dataset
    if not data.at_start or plan.gpus == 1:
        return 0.0
    loader = pick_loader(workload, plan.loader)
    rate = data.loaders[loader].bytes_per_second if loader else float("inf")
    return plan.load_skew * data.samples * data.sample_bytes / rate


def start_seconds(workload: Workload, cluster: Cluster, plan: BasePlan) -> float:
    """Reading the whole set before the first step, every GPU for itself.

    A reader is as fast as its method parses, or as its share of the storage; sharing many readers
    costs more than the bytes (metadata, locks), which the storage's `contention` accounts for.
    """
    data = workload.dataset
    if not data.at_start:
        return 0.0
    loader = pick_loader(workload, plan.loader)
    size = data.samples * data.sample_bytes
    rate = data.loaders[loader].bytes_per_second if loader else float("inf")
    alone = size / rate
    if not cluster.storage:
        return alone
    storage = cluster.storage
    share = min(storage.reader_bandwidth, storage.bandwidth / plan.gpus)
    contended = 1 + storage.contention * log2(plan.gpus)
    return max(alone * contended, size / share)
