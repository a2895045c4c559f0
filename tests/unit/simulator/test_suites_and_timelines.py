"""Suites, fronts, bursts and timelines."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carme import library
from carme.bursts import bursts, two_means
from carme.errors import InputError
from carme.library.suite_runner import Suite, run_suite
from carme.simulator.analysis.search import (
    ExhaustiveSearch,
    Outcome,
    RandomSearch,
    grid_points,
    pareto_front,
)
from carme.simulator.analysis.timeline import (
    burst_figures,
    chrome_trace,
    sample,
    series,
    simulate_window,
)
from carme.simulator.costs.step import plan_step
from carme.simulator.plans import Asynchronous, Averaging, ParameterServer, Synchronous
from carme.simulator.workload import Workload

RESNET = library.workload("resnet-50")
CLUSTER = library.cluster_of("8xV100")
RANGES = {"gpus": [1, 2, 4, 8], "power_cap_watts": [150, 200, 300]}


def suite():
    return Suite(RESNET, CLUSTER, "synchronous", {"gpus": 8, "batch": 256, "epochs": 1})


def test_points_are_every_combination():
    assert list(grid_points({"a": [1, 2], "b": ["x", "y"]})) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    with pytest.raises(InputError, match="no values"):
        list(grid_points({"a": []}))
    with pytest.raises(InputError, match="at most"):
        list(grid_points({"a": range(2000), "b": range(2000)}))


def test_an_exhaustive_suite_runs_every_point_once():
    outcomes = run_suite(suite(), ExhaustiveSearch(RANGES, size=5))
    assert [o.point for o in outcomes] == list(grid_points(RANGES))
    assert {bool(o.error) for o in outcomes if o.point["gpus"] == 1} == {True}


@pytest.mark.parametrize("point", [{"gpus": None}, {"gpus": "two"}, {"gpus": 1.5}, {"gpu": 5}])
def test_a_point_that_cannot_be_is_an_outcome_with_an_error(point):
    assert suite().evaluate(point).error


def test_another_gpu_is_simulated_at_the_same_site():
    """With the site's PUE, grid and storage, and with its network if that is not the usual one."""
    slow = CLUSTER.node.model_copy(update={"network": library.link("ethernet-1"), "adapters": 1})
    site = CLUSTER.model_copy(update={"pue": 1.5, "grams_co2_per_kwh": 100.0, "node": slow})
    fields = {"gpus": 16, "batch": 512, "epochs": 1}

    def figures(cluster):
        return Suite(RESNET, cluster, "synchronous", fields).evaluate({"gpu": "a100"}).figures

    usual, here = figures(CLUSTER), figures(CLUSTER.model_copy(update={"pue": 1.5}))
    assert here["emissions"] == pytest.approx(1.5 * usual["emissions"])
    assert here["time"] == usual["time"]
    there = figures(site)
    assert there["time"] > 2 * usual["time"]
    facility_kwh = 1.5 * there["energy"] / 3.6e6
    assert there["emissions"] == pytest.approx(100 * facility_kwh)


def test_a_random_suite_draws_without_repetition():
    outcomes = run_suite(suite(), RandomSearch(RANGES, 7, seed=3))
    assert len({json.dumps(o.point) for o in outcomes}) == 7
    again = run_suite(suite(), RandomSearch(RANGES, 7, seed=3))
    assert [o.point for o in again] == [o.point for o in outcomes]


def test_a_stored_suite_goes_on_where_it_stopped(tmp_path):
    store = tmp_path / "points.jsonl"
    first = run_suite(suite(), RandomSearch(RANGES, 5, seed=1), store=store)
    with store.open("a") as file:
        file.write('{"cut off')
    asked = []
    whole = run_suite(suite(), ExhaustiveSearch(RANGES), store=store, done=asked.append)
    assert asked[0] == len(first)
    assert len(store.read_text().splitlines()) == 12 + 1
    fresh = {json.dumps(o.point): o.figures for o in run_suite(suite(), ExhaustiveSearch(RANGES))}
    for outcome in whole:
        assert outcome.figures == fresh[json.dumps(outcome.point)]


def test_a_pool_gives_the_same_outcomes():
    alone = run_suite(suite(), ExhaustiveSearch(RANGES))
    pooled = run_suite(suite(), ExhaustiveSearch(RANGES), jobs=2)
    assert [o.point for o in alone] == [o.point for o in pooled]
    assert [o.figures for o in alone] == [o.figures for o in pooled]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_the_front_is_what_no_point_beats(values):
    outcomes = [Outcome({"i": i}, dict(zip("abc", v, strict=True))) for i, v in enumerate(values)]
    best = pareto_front(outcomes, ["a", "b", "c"])
    chosen = {tuple(o.figures.values()) for o in best}
    for v in values:
        beaten = any(w != v and all(x <= y for x, y in zip(w, v, strict=True)) for w in values)
        assert (v in chosen) is not beaten


def test_two_means_finds_the_best_split():
    low, high, threshold = two_means(np.array([1.0, 9.0, 1.2, 8.8, 1.1]))
    assert (low, high) == pytest.approx((1.1, 8.9))
    assert 1.2 < threshold < 8.8
    assert two_means(np.array([3.0, 3.0])) == (3.0, 3.0, 3.0)


def test_bursts_of_a_square_wave():
    wave = np.tile([0.9] * 6 + [0.1] * 14, 10)
    figures = bursts(wave, 0.05)
    assert figures.burst_seconds == pytest.approx(0.3)
    assert figures.idle_seconds == pytest.approx(0.7)
    assert (figures.burst_amount, figures.idle_amount) == pytest.approx((0.9, 0.1))
    assert figures.pattern == "BIB"
    assert bursts(np.full(10, 0.5), 0.05) == (0.5, 0.0, 0.5, 0.0, "B")
    assert bursts(np.zeros(10), 0.05) == (0.0, 0.5, 0.0, 0.0, "I")
    assert bursts(np.array([np.nan]), 0.05).pattern == "I"


def test_samples_are_period_means():
    means = sample(np.array([0.05]), np.array([0.25]), np.array([2.0]), 0.4, 0.1)
    assert means == pytest.approx([1.0, 2.0, 1.0, 0.0])
    assert sample(np.array([]), np.array([]), np.array([]), 0.2, 0.1) == pytest.approx([0, 0])


def test_the_twelve_figures_of_a_communication_bound_job():
    cluster = library.cluster_of("8xT4")
    plan = Synchronous(gpus=8, batch=64, overlap=False)
    window = simulate_window(library.workload("bert-base"), cluster, plan, 40)
    figures = burst_figures(window, 0.01)
    memory, sent = figures["gpu_memory_utilization"], figures["network_sent"]
    assert memory.pattern == sent.pattern == "BIB"
    step = window.step.nominal_seconds
    assert memory.burst_seconds + memory.idle_seconds == pytest.approx(step, rel=0.1)
    assert sent.burst_seconds == pytest.approx(
        float(window.step.bucket_all_reduce_seconds.sum()), abs=0.02
    )
    total = float(series(window, 0.01)["network_sent"].sum()) * 0.01
    # A ring over two nodes: each sends its half twice.
    assert total == pytest.approx(40 * window.step.gradient_bytes, rel=0.01)


@pytest.mark.parametrize("network", ["ethernet-1", "infiniband-edr"])
def test_a_collective_that_spins_counts_as_utilisation(network):
    """As NVML counts it: only the host's time and late samples leave the GPU idle."""
    cluster = library.cluster_of("8xV100", network=network)
    cluster = cluster.model_copy(update={"nodes": 2})
    plan = Synchronous(gpus=16, batch=512, overlap=False, jitter=0.1, loader="raw")
    window = simulate_window(library.workload("resnet-50"), cluster, plan, 10)
    step = window.step
    idle = step.overhead_seconds * 10 / window.report.seconds
    sampled = series(window, window.report.seconds / 1000)
    assert sampled["gpu_utilization"].mean() == pytest.approx(1 - idle, abs=0.002)
    computing = sampled["gpu_memory_utilization"].mean() / step.memory_busy_share
    assert computing < 0.97 - idle


def test_a_stage_spins_between_its_micro_batches():
    plan = Synchronous(gpus=8, pipeline=8, batch=8)
    window = simulate_window(
        library.workload("gpt-1.3b"), library.cluster_of("8xA100-80gb"), plan, 1
    )
    sampled = series(window, window.report.seconds / 1000)
    assert sampled["gpu_utilization"].mean() > 0.99
    assert sampled["gpu_memory_utilization"].mean() < 0.7 * window.step.memory_busy_share


def test_bursts_of_a_short_step_are_seen():
    """A step of 50 ms: at 20 Hz, every sample would be a mean of a whole step."""
    cluster = library.cluster_of("8xV100", network="ethernet-10")
    cluster = cluster.model_copy(update={"nodes": 2})
    plan = Synchronous(gpus=16, batch=64, overlap=False, loader="raw")
    window = simulate_window(library.workload("resnet-50"), cluster, plan, 4)
    step = window.step.nominal_seconds
    assert step < 0.2
    sent = burst_figures(window)["network_sent"]
    assert sent.pattern == "BIB"
    reducing = float(window.step.bucket_all_reduce_seconds.sum())
    assert sent.burst_seconds == pytest.approx(reducing, abs=step / 20)
    assert sent.idle_seconds == pytest.approx(step - reducing, abs=step / 20)


def test_measured_steps_hide_their_all_reduce():
    node = library.node("dgx-1-v100")
    known = {"gpu": node.gpu.name, "batch": 32, "seconds": 0.3}
    fields = {"measured": [known], "parameters": 25e6, "dataset": {"samples": 10_000}}
    workload = Workload.model_validate({"name": "measured", **fields})
    cluster = library.cluster_of("16xV100", network="ethernet-10")

    def step(**more):
        return plan_step(workload, cluster, Synchronous(gpus=16, batch=512, **more))

    exposed, hidden = step(overlap=False), step()
    all_reduce = float(exposed.bucket_all_reduce_seconds.sum())
    assert exposed.nominal_seconds - exposed.overhead_seconds == pytest.approx(0.3 + all_reduce)
    assert len(hidden.bucket_ready_seconds) == 4  # 100 MB in buckets of 25 MB
    assert hidden.bucket_ready_seconds[-1] == pytest.approx(0.3)
    assert hidden.bucket_ready_seconds[0] == pytest.approx(0.3 * (1 / 3 + 2 / 3 / 4))
    assert 0.3 < hidden.nominal_seconds < exposed.nominal_seconds - 0.5 * min(all_reduce, 0.15)


@pytest.mark.parametrize(
    ("name", "gpus", "plan"),
    [
        ("resnet-50", "4xV100", Synchronous(gpus=4, batch=128, jitter=0.05)),
        ("gpt-1.3b", "8xA100-80gb", Synchronous(gpus=8, tensor=2, pipeline=2, batch=8)),
        ("gpt-1.3b", "8xA100-80gb", Synchronous(gpus=8, tensor=2, batch=16, micro_batch=2)),
        ("resnet-50", "4xV100", ParameterServer(gpus=4, batch=32)),
        ("cnn-a", "8xK80", Asynchronous(gpus=8, jitter=0.1)),
        ("kaldi-lstm", "8xtitan-x", Averaging(gpus=8, imbalance=0.05)),
    ],
)
def test_timelines_are_valid_chrome_traces(name, gpus, plan):
    window = simulate_window(library.workload(name), library.cluster_of(gpus), plan, 4)
    trace = json.loads(json.dumps(chrome_trace(window)))
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} <= {"X", "M", "C"}
    slices = [e for e in events if e["ph"] == "X"]
    assert slices
    end = window.report.seconds * 1e6
    rows = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in slices:
        assert event["dur"] > 0
        assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= end * (1 + 1e-9)
        assert event["tid"] in rows
    assert burst_figures(window)["gpu_utilization"].burst_amount > 0


def test_a_timeline_has_an_end():
    with pytest.raises(InputError, match="at most 256"):
        simulate_window(RESNET, library.cluster_of("512xV100"), Synchronous(gpus=512, batch=512))
    slow = Asynchronous(gpus=8, gradient_seconds=1e6, update_seconds=1e-6)
    with pytest.raises(InputError, match="2,000,000,000,000 updates"):
        simulate_window(RESNET, CLUSTER, slow, 2)


def test_a_power_cap_lengthens_the_timeline_of_measured_packages():
    workload, cluster = library.workload("kaldi-lstm"), library.cluster("merpsys")
    lowest = cluster.node.gpu.power.minimum_watts
    full, capped = (
        simulate_window(workload, cluster, Averaging(gpus=4, power_cap_watts=cap), 3)
        for cap in (None, lowest)
    )
    assert capped.report.seconds > 1.01 * full.report.seconds
