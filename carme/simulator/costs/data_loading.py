"""Reading the data set: each step's samples while training, or the whole set at the start."""

from __future__ import annotations

from math import log2

from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import BasePlan, require
from carme.simulator.workloads.workload import Workload


def pick_loader(workload: Workload, name: str | None) -> str:
    """The loading method of this name, or the first; empty if the data set has none."""
    loaders = workload.dataset.loaders
    require(
        name is None or name in loaders,
        f"no loading method {name!r} for {workload.name}",
        f"it has {', '.join(loaders) or 'none'}",
    )
    return name or next(iter(loaders), "")


def step_loading_seconds(
    workload: Workload, cluster: Cluster, plan: BasePlan, global_batch: int
) -> float:
    """Seconds to read one step's samples, limited by the readers' parsing or by storage."""
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


def loading_skew_seconds(workload: Workload, plan: BasePlan) -> float:
    """Seconds that the first reader waits for the last before the weights are broadcast."""
    data = workload.dataset
    if not data.at_start or plan.gpus == 1:
        return 0.0
    loader = pick_loader(workload, plan.loader)
    rate = data.loaders[loader].bytes_per_second if loader else float("inf")
    return plan.load_skew * data.samples * data.sample_bytes / rate


def initial_loading_seconds(workload: Workload, cluster: Cluster, plan: BasePlan) -> float:
    """Seconds in which every GPU reads the whole set before the first step.

    A reader is limited by its parsing or by its share of the storage. Many readers also slow each
    other by metadata and locks: the storage's `contention`.
    """
    data = workload.dataset
    if not data.at_start:
        return 0.0
    loader = pick_loader(workload, plan.loader)
    size = data.samples * data.sample_bytes
    rate = data.loaders[loader].bytes_per_second if loader else float("inf")
    parsing = size / rate
    if not cluster.storage:
        return parsing
    storage = cluster.storage
    share = min(storage.reader_bandwidth, storage.bandwidth / plan.gpus)
    contention = 1 + storage.contention * log2(plan.gpus)
    return max(parsing * contention, size / share)
