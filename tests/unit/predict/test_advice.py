"""What to ask for instead, and that it can be had."""

import pytest

from carme import library
from carme.predict.advice import suggestions
from carme.predict.prediction import predict
from carme.requests.resource_request import AdviceRequest
from carme.simulator.plans import Synchronous
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from support.service import gpu_nodes

LIMIT = 100 * 60
NODES = gpu_nodes("virtual-a100", "virtual-a100")


def snapshot(nodes):
    gpu = Partition(name="gpu", nodes=tuple(n.name for n in nodes), max_seconds=LIMIT)
    return Snapshot(taken_at=0, partitions=(gpu,), nodes=tuple(nodes))


@pytest.fixture(scope="module")
def made():
    workload, cluster = library.workload("resnet-50"), library.cluster_of("1xA100")
    return predict(workload, cluster, Synchronous(epochs=1), detail=False)


def figures(made, wish, seconds, joules=1e6, nodes=None):
    """A prediction for the wish that takes so long."""
    time = made.time.model_copy(update={"value": seconds, "low": seconds / 2, "high": 2 * seconds})
    energy = made.node_energy.model_copy(update={"value": joules})
    changes = {"time": time, "node_energy": energy, "gpus": wish.nodes * wish.gpus}
    return made.model_copy(update={**changes, "nodes": nodes or wish.nodes})


def said(made, wish, *, here=2000, other=2000, **more):
    """The suggestions where every other choice takes `other` seconds."""
    found = suggestions(
        wish,
        snapshot(NODES),
        figures(made, wish, here, **more),
        lambda w: figures(made, w, other),
    )
    return {item.kind: item for item in found}


def test_fewer_gpus_are_meant_on_each_node(made):
    wish = AdviceRequest(partition="gpu", nodes=2, gpus=4, hours=1.2)
    found = said(made, wish)["smaller"]
    assert found.gpus == 1
    assert found.why.startswith("1 instead of 4 GPUs on each of 2 nodes take only 0% longer")
    alone = said(made, wish.model_copy(update={"nodes": 1}))["smaller"]
    assert alone.why.startswith("1 instead of 4 GPUs take only")


def test_no_more_gpus_than_so_many_nodes_have(made):
    large, small = NODES
    small = small.model_copy(update={"gpus": {"virtual-a100": 2}})
    asked = []

    def ask(other):
        asked.append(other.gpus)
        return figures(made, other, 2000)

    wish = AdviceRequest(partition="gpu", nodes=2, gpus=1, hours=1)
    list(suggestions(wish, snapshot([large, small]), figures(made, wish, 2000), ask))
    assert asked == [2]


def test_what_is_predicted_closer_together_is_not_compared(made):
    wish = AdviceRequest(partition="gpu", nodes=2, gpus=4, hours=1.2)
    found = suggestions(
        wish,
        snapshot(NODES),
        figures(made, wish, 2000),
        lambda w: figures(made, w, 2000, nodes=1),
    )
    assert "smaller" not in {item.kind for item in found}


@pytest.mark.parametrize(
    ("hours", "seconds", "says"),
    [
        (1, 5000, "the session ends before"),
        (1, 7000, "save and resume from checkpoints"),
        (20, 2900, "shorter jobs start"),
    ],
)
def test_the_time_offered_is_one_that_the_partition_allows(made, hours, seconds, says):
    """100 minutes are 1.67 hours, and 1.67 hours are more than 100 minutes."""
    wish = AdviceRequest(partition="gpu", gpus=1, hours=hours)
    found = said(made, wish, here=seconds, other=10 * seconds)["time"]
    assert says in found.why
    assert found.hours == 1.66


def test_a_time_that_is_the_most_already_is_not_offered_again(made):
    wish = AdviceRequest(partition="gpu", gpus=1, hours=1.66)
    assert said(made, wish, here=7000, other=70_000)["time"].hours is None


def test_energies_that_are_compared_have_one_unit(made):
    wish = AdviceRequest(partition="gpu", gpus=1, hours=1)
    found = suggestions(
        wish,
        snapshot(NODES),
        figures(made, wish, 2000, joules=400e3),
        lambda w: figures(made, w, 2000, joules=300e3),
    )
    [better] = [item for item in found if item.kind == "better"]
    assert "0.0833 kWh instead of 0.111 kWh of node energy" in better.why


@pytest.mark.parametrize(
    ("seconds", "says"), [(400, "not slower (6 min"), (2000, "about as fast"), (1100, "about as")]
)
def test_not_slower_is_said_only_if_the_intervals_say_so(made, seconds, says):
    """Both intervals reach from half to twice the time."""
    wish = AdviceRequest(partition="gpu", gpus=1, hours=1)
    found = suggestions(
        wish,
        snapshot(NODES),
        figures(made, wish, 2000, joules=400e3),
        lambda w: figures(made, w, seconds, joules=300e3),
    )
    [better] = [item for item in found if item.kind == "better"]
    assert better.why.startswith(says)
