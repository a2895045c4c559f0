"""This cluster's hardware: the GPUs that a request means, its workers and its share of a node."""

from carme.predict.cluster_hardware import (
    default_gpu_type,
    hardware_of,
    held_node_share,
    requested_gpu_type,
    worker_count,
)
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import Node, Partition, Reservation
from carme.slurm.snapshot import Snapshot
from support.service import gpu_nodes


def test_the_share_of_a_request_is_of_the_processors_or_of_the_memory():
    node = gpu_nodes("virtual-a100")[0].model_copy(update={"cpus": 64, "memory_bytes": 2**40})
    partition = Partition(name="gpu", nodes=(node.name,))
    snapshot = Snapshot(taken_at=0, partitions=(partition,), nodes=(node,))

    def share(cpus, gib, gpu_type="virtual-a100"):
        return held_node_share(snapshot, "gpu", gpu_type, cpus=cpus, memory_bytes=gib * 2**30)

    assert share(16, 64) == 16 / 64
    assert share(1, 512) == 1 / 2
    assert share(1, 512, "") == 1 / 2
    assert share(128, 1) == 1
    assert share(1, 1, "virtual-h100") is None


def test_where_no_type_is_named_the_share_is_that_of_the_most_common_gpus_node():
    large, small, other = gpu_nodes("virtual-a100", "virtual-t4", "virtual-t4")
    large = large.model_copy(update={"gpus": {"virtual-a100": 6}, "cpus": 64})
    small, other = (node.model_copy(update={"cpus": 16}) for node in (small, other))
    nodes = (large, small, other)
    partition = Partition(name="gpu", nodes=tuple(node.name for node in nodes))
    snapshot = Snapshot(taken_at=0, partitions=(partition,), nodes=nodes)
    assert default_gpu_type(nodes) == "virtual-t4"
    assert hardware_of(snapshot, "gpu", "", {}).node.gpu.name == "t4"
    assert held_node_share(snapshot, "gpu", "", cpus=8, memory_bytes=1) == 1 / 2


def test_inside_a_reservation_its_most_common_gpu_is_meant():
    a100, *t4 = gpu_nodes("virtual-a100", "virtual-t4", "virtual-t4")
    nodes = (a100, *t4)
    partition = Partition(name="gpu", nodes=tuple(node.name for node in nodes))
    course = Reservation(name="course", nodes=(a100.name,))
    snapshot = Snapshot(taken_at=0, partitions=(partition,), nodes=nodes, reservations=(course,))
    request = ResourceRequest(partition="gpu", gpus=1)
    assert requested_gpu_type(request, snapshot) == "virtual-t4"
    inside = request.model_copy(update={"reservation": "course"})
    assert requested_gpu_type(inside, snapshot) == "virtual-a100"
    assert requested_gpu_type(request.model_copy(update={"gpus": 0}), snapshot) == ""


def test_the_workers_are_the_gpus_or_the_cores_of_a_partition_without_gpus():
    (gpu_node,) = gpu_nodes("virtual-a100")
    cpu_node = Node(name="cpu0", partitions=("cpu",), cpus=8, memory_bytes=2**33)
    partitions = (Partition(name="gpu", nodes=("gpu0",)), Partition(name="cpu", nodes=("cpu0",)))
    snapshot = Snapshot(taken_at=0, partitions=partitions, nodes=(gpu_node, cpu_node))
    assert worker_count(ResourceRequest(partition="gpu", nodes=2, gpus=3, cpus=6), snapshot) == 6
    assert worker_count(ResourceRequest(partition="cpu", nodes=2, cpus=4), snapshot) == 8
