"""Time of collective operations over the links of a cluster.

n GPUs, g of them on each of k nodes; S bytes; α the latency and B the rate of a link:
ring          2(n−1)·α + 2·(n−1)/n·S/B
tree          2·⌈log₂ n⌉·α + 2·S/B          (two pipelined trees: all links busy)
hierarchical  reduce-scatter in the node, ring between nodes on S, all-gather in the node

Where several groups reduce at the same time (one for each tensor-parallel part and pipeline stage),
those on a node share its adapters. Inside the node they do not: a link is a GPU's own, and a GPU
is in one group.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

from carme.simulator.hardware.cluster import LinkModel, NodeModel
from carme.simulator.plans.plan import AllReduce


class Group(NamedTuple):
    """GPUs that reduce together: `per_node` on each of `nodes`."""

    per_node: int
    nodes: int
    sharing: int = 1
    """Groups on a node that reduce at the same time, this one included."""

    @property
    def size(self) -> int:
        return self.per_node * self.nodes


def spread(gpus: int, node: NodeModel, stride: int = 1) -> Group:
    """The group of `gpus` GPUs that lie `stride` apart when nodes are filled one by one."""
    per_node = max(node.gpus // stride, 1)
    sharing = min(stride, node.gpus)
    if gpus <= per_node:
        return Group(gpus, 1, sharing)
    return Group(per_node, ceil(gpus / per_node), sharing)


class LinearCost(NamedTuple):
    """Seconds of an all-reduce: `start` + `per_byte` x bytes."""

    start: float
    per_byte: float


def all_reduce_costs(
    group: Group, node: NodeModel, algorithm: AllReduce = "auto"
) -> list[LinearCost]:
    """One line for each way that may be taken; the fastest for the size at hand is."""
    if group.size <= 1:
        return [LinearCost(0.0, 0.0)]
    if algorithm == "auto":
        ways: tuple[AllReduce, ...] = ("ring", "tree", "hierarchical")
        return [line for way in ways for line in all_reduce_costs(group, node, way)]
    inside, outside, launch = node.gpu_link, node.network, node.collective_seconds
    if algorithm == "hierarchical" and group.nodes > 1:
        g, k, _ = group
        start = 2 * (g - 1) * inside.latency_seconds + 2 * (k - 1) * outside.latency_seconds
        slope = 2 * (g - 1) / g / inside.rate + 2 * (k - 1) / k / _network_rate(node, group)
        return [LinearCost(launch + start, slope)]
    n = group.size
    latency, rate = _slowest(inside, node, group)
    if algorithm == "tree":
        return [LinearCost(launch + 2 * ceil(log2(n)) * latency, 2 / rate)]
    return [LinearCost(launch + 2 * (n - 1) * latency, 2 * (n - 1) / n / rate)]


def all_reduce_seconds(
    size: float, group: Group, node: NodeModel, algorithm: AllReduce = "auto"
) -> float:
    """Seconds to sum `size` bytes over the group, everyone getting the sum."""
    if size <= 0:
        return 0.0
    return min(
        line.start + line.per_byte * size for line in all_reduce_costs(group, node, algorithm)
    )


def all_reduce_bytes(size: float, group: Group) -> float:
    """Bytes that each GPU sends (and receives) in a ring all-reduce."""
    return 2 * (group.size - 1) / group.size * size if group.size > 1 else 0.0


def broadcast_seconds(size: float, group: Group, node: NodeModel) -> float:
    """Seconds until everyone has `size` bytes of the first; a pipelined tree."""
    if group.size <= 1:
        return 0.0
    latency, rate = _slowest(node.gpu_link, node, group)
    return node.collective_seconds + ceil(log2(group.size)) * latency + size / rate


def send_seconds(size: float, node: NodeModel, crosses_nodes: bool) -> float:
    """Seconds of one point-to-point message; between nodes it has one adapter."""
    link = node.network if crosses_nodes else node.gpu_link
    return link.latency_seconds + size / link.rate


def _slowest(inside: LinkModel, node: NodeModel, group: Group) -> tuple[float, float]:
    if group.nodes == 1:
        return inside.latency_seconds, inside.rate
    if group.per_node == 1:
        return node.network.latency_seconds, _network_rate(node, group)
    return node.network.latency_seconds, min(inside.rate, _network_rate(node, group))


def _network_rate(node: NodeModel, group: Group) -> float:
    """Bytes a second out of a node for this group."""
    return node.network_rate(group.nodes) / group.sharing
