"""Advice for a choice on several nodes: all of its GPUs are meant."""

import pytest

from support.service import gpu_nodes

WISH = {"partition": "gpu", "gpu_type": "virtual-a100", "hours": 8, "workload": "resnet-50"}


@pytest.fixture
def two_nodes(service):
    nodes = gpu_nodes("virtual-a100", "virtual-a100")
    service.view.snapshot = service.view.snapshot.model_copy(update={"nodes": nodes})
    return service


def advice(service, **values):
    answer = service.ask("POST", "/advice", body={**WISH, **values})
    assert answer.status_code == 200, answer.json
    return answer.json


def test_the_gpus_of_all_nodes_are_predicted(two_nodes):
    found = advice(two_nodes, nodes=2, gpus=4)
    assert (found["prediction"]["gpus"], found["prediction"]["nodes"]) == (8, 2)
    assert found["notes"] == []


def test_it_starts_now_where_there_are_as_many_free_nodes(two_nodes):
    assert advice(two_nodes, nodes=2, gpus=4, workload="")["wait"]["starts_now"]
    assert not advice(two_nodes, nodes=3, gpus=1, workload="")["wait"]["starts_now"]
    [asked] = [path for path in two_nodes.view.asked if "expected-start" in path]
    assert "nodes=3" in asked


def test_figures_for_fewer_nodes_than_asked_say_so_and_lead_to_no_advice(two_nodes):
    found = advice(two_nodes, nodes=2, gpus=1)
    assert (found["prediction"]["gpus"], found["prediction"]["nodes"]) == (2, 1)
    [note] = found["notes"]
    assert "2 x a100 on 1 node" in note
    assert "spread over 2 nodes" in note
    assert found["suggestions"] == []


def test_more_nodes_than_there_are_is_said(two_nodes):
    answer = two_nodes.ask("POST", "/advice", body={**WISH, "nodes": 3, "gpus": 4})
    assert answer.status_code == 422
    assert "12 GPUs" in answer.json["detail"]


def test_node_energy_is_charged_by_the_largest_share_of_the_node(two_nodes):
    small = advice(two_nodes, gpus=1, cpus=1, memory_gb=1)["prediction"]
    large = advice(two_nodes, gpus=1, cpus=8, memory_gb=1)["prediction"]
    assert (small["plan"]["node_share"], large["plan"]["node_share"]) == (1 / 8, 1)
    assert small["gpu_energy"] == large["gpu_energy"]
    assert small["node_energy"]["value"] < large["node_energy"]["value"]
    assert large["node_energy"]["value"] < large["whole_node_energy"]["value"]
    assert small["emissions"]["value"] < large["emissions"]["value"]
