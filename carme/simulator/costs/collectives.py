"""Seconds of collective operations over the links of a cluster, by the α–β model.

n GPUs, g of them on each of k nodes; S bytes; α the latency and B the bandwidth of a link:
ring          2(n−1)·α + 2·(n−1)/n·S/B
tree          2·⌈log₂ n⌉·α + 2·S/B          (two pipelined trees: all links busy)
hierarchical  reduce-scatter in the node, ring between nodes on S, all-gather in the node

Where several groups reduce at the same time (one for each tensor-parallel rank and pipeline stage),
those on a node share its adapters. Inside the node they share nothing: each GPU has its own link
and is in one group.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple, TypeVar

from carme.simulator.hardware import LinkModel, NodeModel
from carme.simulator.plans import AllReduce, BasePlan, Synchronous
from carme.simulator.workload import Floats

T = TypeVar("T", float, Floats)


class CollectiveGroup(NamedTuple):
    """GPUs of one collective: `per_node` on each of `nodes`."""

    per_node: int
    nodes: int
    sharing: int = 1
    """Groups on a node that communicate at the same time, this one included."""

    @property
    def size(self) -> int:
        return self.per_node * self.nodes


def collective_group(gpus: int, node: NodeModel, stride: int = 1) -> CollectiveGroup:
    """The group of `gpus` GPUs whose ranks are `stride` apart; ranks fill node after node."""
    per_node = max(node.gpus // stride, 1)
    sharing = min(stride, node.gpus)
    if gpus <= per_node:
        return CollectiveGroup(gpus, 1, sharing)
    return CollectiveGroup(per_node, ceil(gpus / per_node), sharing)


def placed_node(node: NodeModel, plan: BasePlan) -> NodeModel:
    """The node with as many GPUs as the plan uses of it, and the adapters beside these."""
    per_node = node.gpus if plan.nodes is None else -(-plan.gpus // plan.nodes)
    if per_node == node.gpus:
        return node
    adapters = max(node.adapters * per_node // node.gpus, 1)
    return node.model_copy(update={"gpus": per_node, "adapters": adapters})


def gradient_group(plan: Synchronous, node: NodeModel) -> CollectiveGroup:
    """The GPUs that reduce the gradients of the same weights.

    Ranks count tensor-parallel GPUs first, then context and data, then stages (Megatron-LM)."""
    return collective_group(plan.replicas, node, plan.tensor)


class AllReduceCost(NamedTuple):
    """Seconds of an all-reduce by one algorithm, linear in its bytes."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, size: T) -> T:
        """Seconds for `size` bytes."""
        return self.latency_seconds + self.seconds_per_byte * size


def all_reduce_costs(
    group: CollectiveGroup, node: NodeModel, algorithm: AllReduce = "auto"
) -> list[AllReduceCost]:
    """The cost by each algorithm that may be used; with `auto` the fastest for a size is."""
    if group.size <= 1:
        return [AllReduceCost(0.0, 0.0)]
    if algorithm == "auto":
        algorithms: tuple[AllReduce, ...] = ("ring", "tree", "hierarchical")
        return [cost for name in algorithms for cost in all_reduce_costs(group, node, name)]
    gpu_link, network, launch = node.gpu_link, node.network, node.collective_seconds
    if algorithm == "hierarchical" and group.nodes > 1:
        g, k, _ = group
        latency = 2 * (g - 1) * gpu_link.latency_seconds + 2 * (k - 1) * network.latency_seconds
        per_byte = 2 * (g - 1) / g / gpu_link.rate + 2 * (k - 1) / k / _network_rate(node, group)
        return [AllReduceCost(launch + latency, per_byte)]
    n = group.size
    latency, rate = _bottleneck(gpu_link, node, group)
    if algorithm == "tree":
        return [AllReduceCost(launch + 2 * ceil(log2(n)) * latency, 2 / rate)]
    return [AllReduceCost(launch + 2 * (n - 1) * latency, 2 * (n - 1) / n / rate)]


def all_reduce_seconds(
    size: float, group: CollectiveGroup, node: NodeModel, algorithm: AllReduce = "auto"
) -> float:
    """Seconds of an all-reduce of `size` bytes over the group."""
    if size <= 0:
        return 0.0
    return min(cost.seconds(size) for cost in all_reduce_costs(group, node, algorithm))


def all_reduce_bytes(size: float, group: CollectiveGroup) -> float:
    """Bytes that each GPU sends (and receives) in a ring all-reduce."""
    return 2 * (group.size - 1) / group.size * size if group.size > 1 else 0.0


def broadcast_seconds(size: float, group: CollectiveGroup, node: NodeModel) -> float:
    """Seconds of a broadcast of `size` bytes in a pipelined tree."""
    if group.size <= 1:
        return 0.0
    latency, rate = _bottleneck(node.gpu_link, node, group)
    return node.collective_seconds + ceil(log2(group.size)) * latency + size / rate


def gather_costs(
    group: CollectiveGroup, node: NodeModel, algorithm: AllReduce = "auto"
) -> list[AllReduceCost]:
    """The cost of an all-gather, or of a reduce-scatter, of `size` bytes over all GPUs: half of an
    all-reduce."""
    launch = node.collective_seconds if group.size > 1 else 0.0
    return [
        AllReduceCost(launch + (cost.latency_seconds - launch) / 2, cost.seconds_per_byte / 2)
        for cost in all_reduce_costs(group, node, algorithm)
    ]


def gather_seconds(size: float, group: CollectiveGroup, node: NodeModel) -> float:
    """Seconds of an all-gather or a reduce-scatter of `size` bytes over the group."""
    if size <= 0 or group.size <= 1:
        return 0.0
    return min(cost.seconds(size) for cost in gather_costs(group, node))


def all_to_all_seconds(size: float, group: CollectiveGroup, node: NodeModel) -> float:
    """Seconds in which each GPU sends `size` bytes, an equal part to each GPU of the group."""
    if size <= 0 or group.size <= 1:
        return 0.0
    n, g = group.size, group.per_node
    inside_seconds = size * (g - 1) / n / node.gpu_link.rate
    if group.nodes == 1:
        return node.collective_seconds + node.gpu_link.latency_seconds + inside_seconds
    outside_seconds = size * (n - g) / n * g / _network_rate(node, group)
    latency = node.network.latency_seconds * log2(group.nodes)
    return node.collective_seconds + latency + max(inside_seconds, outside_seconds)


def send_seconds(size: float, node: NodeModel, crosses_nodes: bool, senders: int = 1) -> float:
    """Seconds of one point-to-point message. Between nodes it uses one adapter; `senders` on the
    node that send at the same time share its adapters."""
    if not crosses_nodes:
        return node.gpu_link.latency_seconds + size / node.gpu_link.rate
    share = min(node.adapters / senders, 1.0)
    return node.network.latency_seconds + size / (node.network.rate * share)


def _bottleneck(
    gpu_link: LinkModel, node: NodeModel, group: CollectiveGroup
) -> tuple[float, float]:
    if group.nodes == 1:
        return gpu_link.latency_seconds, gpu_link.rate
    if group.per_node == 1:
        return node.network.latency_seconds, _network_rate(node, group)
    return node.network.latency_seconds, min(gpu_link.rate, _network_rate(node, group))


def _network_rate(node: NodeModel, group: CollectiveGroup) -> float:
    """Bytes per second out of a node for this group."""
    return node.network_rate(group.nodes) / group.sharing
