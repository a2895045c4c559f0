"""Advice on requests: several nodes, and the limits that the form knows."""

import time

import pytest

from carme.requests.resource_request import ADVICE_SECONDS, ADVICE_VIEW_SECONDS
from carme.slurm.models import Job, Reservation
from carme.slurm.rights import Association, JobLimits, Qos, UserRights
from carme.slurm.states import JobState
from support.cluster import wait_for
from support.service import gpu_nodes

REQUEST = {"partition": "gpu", "gpu_type": "virtual-a100", "hours": 8, "workload": "resnet-50"}


@pytest.fixture
def two_nodes(service):
    nodes = gpu_nodes("virtual-a100", "virtual-a100")
    service.view.snapshot = service.view.snapshot.model_copy(update={"nodes": nodes})
    return service


def advice(service, **values):
    answer = service.ask("POST", "/advice", body={**REQUEST, **values})
    assert answer.status_code == 200, answer.json
    return answer.json


def test_the_gpus_of_all_nodes_are_predicted(two_nodes):
    answer = advice(two_nodes, nodes=2, gpus=4)
    assert (answer["prediction"]["gpus"], answer["prediction"]["nodes"]) == (8, 2)
    assert answer["notes"] == []


def wait(service, **values):
    return advice(service, **{"workload": "", "gpu_type": "", **values})["wait"]


def test_it_starts_now_where_there_are_as_many_free_nodes(two_nodes):
    assert wait(two_nodes, nodes=2, gpus=4)["starts_now"]
    first, second = two_nodes.view.snapshot.nodes
    third = second.model_copy(update={"name": "gpu2", "cpus_used": second.cpus})
    change(two_nodes, nodes=(first, second, third))
    assert not wait(two_nodes, nodes=3, gpus=1)["starts_now"]
    [asked] = [path for path in two_nodes.view.asked if "expected-start" in path]
    assert "nodes=3" in asked
    assert wait(two_nodes, nodes=4, gpus=1)["words"].startswith(
        "would be refused: Nodes: gpu has 3"
    )


def change(service, **values):
    """Another snapshot; returns when the service has it."""
    snapshot = service.view.snapshot.model_copy(update={**values, "taken_at": time.time()})
    service.view.snapshot = snapshot

    def is_known():
        return service.context.cluster.snapshot().taken_at == snapshot.taken_at

    wait_for(is_known, 10, "the service has the new snapshot")


def test_a_reservation_of_others_takes_its_nodes_away(two_nodes):
    now = int(time.time())
    course = Reservation(
        name="course", starts_at=now + 1800, ends_at=now + 9000, nodes=("gpu0", "gpu1"),
        users=("ann",),
    )  # fmt: skip
    change(two_nodes, reservations=(course,))
    assert not wait(two_nodes, gpus=1, hours=1)["starts_now"]
    assert wait(two_nodes, gpus=1, hours=0.4)["starts_now"]
    within_reservation = wait(two_nodes, gpus=1, hours=0.4, reservation="course")
    assert not within_reservation["starts_now"]
    assert within_reservation["expected_at"] == now + 1800


RIGHTS = UserRights(
    user="ann",
    enforced=("associations", "limits", "qos"),
    default_account="lab",
    associations=(Association(account="lab", user="ann", qos=("normal",), default_qos="normal"),),
    accounts=(Association(account="lab", parent="root"),),
    qos=(Qos(name="normal", limits=JobLimits(max_seconds=7200, per_user={"gres/gpu": 2})),),
)


def test_limits_of_account_and_qos_hold_as_in_the_form(two_nodes):
    two_nodes.view.rights["ann"] = RIGHTS
    assert wait(two_nodes, gpus=2, hours=1)["starts_now"]
    assert "QoS normal gives one user at most 2 GPUs" in wait(two_nodes, gpus=4, hours=1)["words"]
    assert "no account other" in wait(two_nodes, gpus=1, hours=1, account="other")["words"]
    running = Job(
        id=1, user="ann", account="lab", qos="normal", partition="gpu", state=JobState.RUNNING,
        gpus={"virtual-a100": 1},
    )  # fmt: skip
    change(two_nodes, jobs=(running,))
    assert "You already have 1 GPU" in wait(two_nodes, gpus=2, hours=1)["words"]
    suggestions = advice(two_nodes, gpus=1, hours=8, workload="resnet-50")["suggestions"]
    assert not [other for other in suggestions if (other["gpus"] or 0) > 2]
    assert not [other for other in suggestions if (other["hours"] or 0) > 2]


def test_rights_that_come_late_refuse_nothing_and_the_advice_says_so(two_nodes):
    two_nodes.view.rights["ann"] = RIGHTS
    two_nodes.view.rights_seconds = 2 * ADVICE_VIEW_SECONDS
    late = wait(two_nodes, gpus=1, hours=1, account="lab", qos="normal")
    assert late["starts_now"]
    assert "refused" not in late["words"]
    assert "your accounts and QoS cannot be read now" in late["words"]


def test_nothing_starts_now_while_slurm_is_away(two_nodes):
    change(two_nodes, controller="away")
    away = wait(two_nodes, gpus=1)
    assert not away["starts_now"]
    assert "Slurm does not answer now" in away["words"]


def test_a_slow_estimate_of_the_start_does_not_delay_the_advice(two_nodes):
    full = tuple(
        node.model_copy(update={"cpus_used": node.cpus}) for node in two_nodes.view.snapshot.nodes
    )
    change(two_nodes, nodes=full)
    advice(two_nodes, gpus=1)  # the simulator is warm
    two_nodes.view.expected_start_seconds = 2
    started = time.monotonic()
    answer = advice(two_nodes, gpus=2)
    assert time.monotonic() - started < ADVICE_SECONDS
    assert answer["wait"]["words"] == "would wait; when it starts is not known"


def test_figures_are_for_as_many_nodes_as_were_asked_for(two_nodes):
    spread, filled = (advice(two_nodes, nodes=n, gpus=2 // n)["prediction"] for n in (2, 1))
    assert (spread["gpus"], spread["nodes"]) == (2, 2)
    assert (filled["gpus"], filled["nodes"]) == (2, 1)
    assert spread["time"]["value"] > filled["time"]["value"]
    assert advice(two_nodes, nodes=2, gpus=1)["notes"] == []


def test_more_nodes_than_there_are_is_said(two_nodes):
    answer = two_nodes.ask("POST", "/advice", body={**REQUEST, "nodes": 3, "gpus": 4})
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
