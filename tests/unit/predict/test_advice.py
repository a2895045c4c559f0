"""Suggestions: other requests that are better and that the form accepts."""

import pytest

from carme import library
from carme.predict.advice import suggestions
from carme.predict.prediction import predict
from carme.requests.resource_request import AdviceRequest
from carme.simulator.plans import Synchronous
from carme.slurm.models import Partition, Reservation
from carme.slurm.snapshot import Snapshot
from support.service import gpu_nodes

LIMIT = 100 * 60
NODES = gpu_nodes("virtual-a100", "virtual-a100")


def snapshot_of(nodes, **values):
    gpu = Partition(name="gpu", nodes=tuple(n.name for n in nodes), max_seconds=LIMIT)
    return Snapshot(taken_at=0, partitions=(gpu,), nodes=tuple(nodes), **values)


@pytest.fixture(scope="module")
def prediction():
    workload, cluster = library.workload("resnet-50"), library.cluster_of("1xA100")
    return predict(workload, cluster, Synchronous(epochs=1), detail=False)


def figures(prediction, request, seconds, joules=1e6, nodes=None, spread=2):
    """A prediction for the request with this time and energy; intervals are `spread` times as
    wide."""

    def estimate(before, value):
        interval = {"value": value, "low": value / spread, "high": value * spread}
        return before.model_copy(update=interval)

    changes = {
        "time": estimate(prediction.time, seconds),
        "node_energy": estimate(prediction.node_energy, joules),
        "gpus": request.nodes * request.gpus,
        "nodes": nodes or request.nodes,
    }
    return prediction.model_copy(update=changes)


def suggestions_by_kind(prediction, request, *, seconds=2000, other_seconds=2000, **more):
    """The suggestions where every other request takes `other_seconds`."""
    items = suggestions(
        request,
        snapshot_of(NODES),
        figures(prediction, request, seconds, **more),
        lambda other: figures(prediction, other, other_seconds),
    )
    return {item.kind: item for item in items}


def alternatives(prediction, request, snapshot, **more):
    """Type and count of the GPUs in every request that is compared with the one given."""
    compared = []

    def predict_other(other):
        compared.append((other.gpu_type, other.gpus))
        return figures(prediction, other, 2000)

    list(suggestions(request, snapshot, figures(prediction, request, 2000), predict_other, **more))
    return compared


def test_fewer_gpus_are_meant_on_each_node(prediction):
    request = AdviceRequest(partition="gpu", nodes=2, gpus=4, hours=1.2)
    smaller = suggestions_by_kind(prediction, request)["smaller"]
    assert smaller.gpus == 1
    assert smaller.why.startswith("1 instead of 4 GPUs on each of 2 nodes take only 0% longer")
    one_node = request.model_copy(update={"nodes": 1})
    smaller = suggestions_by_kind(prediction, one_node)["smaller"]
    assert smaller.why.startswith("1 instead of 4 GPUs take only")


def test_no_more_gpus_than_so_many_nodes_have(prediction):
    large, small = NODES
    small = small.model_copy(update={"gpus": {"virtual-a100": 2}})
    request = AdviceRequest(partition="gpu", nodes=2, gpus=1, hours=1)
    assert alternatives(prediction, request, snapshot_of([large, small])) == [("", 2)]


def mixed_nodes():
    """A node with A100 and 64 cores, and one with T4 and 16 cores."""
    a100, t4 = gpu_nodes("virtual-a100", "virtual-t4")
    return a100.model_copy(update={"cpus": 64}), t4.model_copy(update={"cpus": 16})


def test_no_gpus_are_suggested_whose_nodes_have_too_few_cores(prediction):
    snapshot = snapshot_of(mixed_nodes())
    request = AdviceRequest(partition="gpu", gpus=1, gpu_type="virtual-a100", cpus=32)
    compared = alternatives(prediction, request, snapshot)
    assert {kind for kind, _ in compared} == {"virtual-a100"}
    fewer_cores = request.model_copy(update={"cpus": 16})
    assert ("virtual-t4", 1) in alternatives(prediction, fewer_cores, snapshot)


def test_a_problem_of_the_request_itself_excludes_no_alternative(prediction):
    request = AdviceRequest(partition="gpu", nodes=2, gpus=4)
    assert alternatives(prediction, request, snapshot_of(NODES), max_nodes=1)


@pytest.mark.parametrize("limit", ["reservation", "constraint"])
def test_only_gpus_of_nodes_that_the_request_may_use_are_suggested(prediction, limit):
    a100, t4 = mixed_nodes()
    a100 = a100.model_copy(update={"features": ("fast",)})
    course = Reservation(name="course", nodes=(a100.name,))
    value = {"reservation": "course", "constraint": "fast"}[limit]
    request = AdviceRequest(partition="gpu", gpus=1, gpu_type="virtual-a100", **{limit: value})
    compared = alternatives(prediction, request, snapshot_of([a100, t4], reservations=(course,)))
    assert compared == [("virtual-a100", 2), ("virtual-a100", 4)]


def test_figures_for_fewer_nodes_are_not_compared(prediction):
    request = AdviceRequest(partition="gpu", nodes=2, gpus=4, hours=1.2)
    items = suggestions(
        request,
        snapshot_of(NODES),
        figures(prediction, request, 2000),
        lambda other: figures(prediction, other, 2000, nodes=1),
    )
    assert "smaller" not in {item.kind for item in items}


@pytest.mark.parametrize(
    ("hours", "seconds", "text"),
    [
        (1, 5000, "the session ends before"),
        (1, 7000, "save and resume from checkpoints"),
        (20, 2900, "shorter jobs start"),
    ],
)
def test_the_time_offered_is_one_that_the_partition_allows(prediction, hours, seconds, text):
    """100 minutes are 1.67 hours, and 1.67 hours are more than 100 minutes."""
    request = AdviceRequest(partition="gpu", gpus=1, hours=hours)
    item = suggestions_by_kind(
        prediction, request, seconds=seconds, other_seconds=10 * seconds
    )["time"]  # fmt: skip
    assert text in item.why
    assert item.hours == 1.66


def test_a_time_that_is_the_most_already_is_not_offered_again(prediction):
    request = AdviceRequest(partition="gpu", gpus=1, hours=1.66)
    items = suggestions_by_kind(prediction, request, seconds=7000, other_seconds=70_000)
    assert items["time"].hours is None


def better_suggestion(prediction, *, seconds=2000, spread=2.0):
    """The suggestion of a request with 300 kJ, where the user's takes 2000 s and 400 kJ."""
    request = AdviceRequest(partition="gpu", gpus=1, hours=1)
    items = suggestions(
        request,
        snapshot_of(NODES),
        figures(prediction, request, 2000, joules=400e3, spread=spread),
        lambda other: figures(prediction, other, seconds, joules=300e3, spread=spread),
    )
    [better] = [item for item in items if item.kind == "better"]
    return better


def test_energies_that_are_compared_have_one_unit(prediction):
    why = better_suggestion(prediction).why
    assert "0.0833 kWh instead of 0.111 kWh of charged energy" in why


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (400, "not slower (6 min"),
        (2000, "no clear difference in time (16 min 40 s to 1 h 6 min against 16 min 40 s to"),
        (1100, "no clear difference in time (9 min 10 s to 36 min 40 s against 16 min 40 s to"),
    ],
)
def test_not_slower_is_said_only_if_the_intervals_say_so(prediction, seconds, text):
    """Both intervals reach from half to twice the time."""
    assert better_suggestion(prediction, seconds=seconds).why.startswith(text)


def test_energies_whose_intervals_overlap_are_shown_with_them(prediction):
    energies = "0.0833 kWh instead of 0.111 kWh of charged energy"
    intervals = "(0.0417 kWh to 0.167 kWh against 0.0556 kWh to 0.222 kWh, 90 % intervals)"
    assert better_suggestion(prediction).why.endswith(f"about {energies} {intervals}")
    assert better_suggestion(prediction, spread=1.1).why.endswith(f" and {energies}")
