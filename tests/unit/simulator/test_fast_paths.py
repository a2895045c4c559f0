"""Fast paths against the general engine: the same answers to 1e-9."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carme import library
from carme.simulator.analysis.timeline import simulate_window
from carme.simulator.costs.step import plan_step
from carme.simulator.events import compiled_queues, models
from carme.simulator.hardware import Cluster
from carme.simulator.pipeline_schedule import makespan
from carme.simulator.plans import (
    Synchronous,
    averaging_schedule,
)
from carme.simulator.runs.asynchronous import staleness_statistics
from carme.simulator.runs.jitter import Jitter

few = settings(max_examples=25, deadline=None)


def link_trace(report):
    """begin[w, k] and end[w, k] of the transfers."""
    begin, end = {}, {}
    for record in report.records():
        if record.resource == "link":
            worker = int(record.process.split()[1])
            begin.setdefault(worker, []).append(record.start)
            end.setdefault(worker, []).append(record.end)
    return [begin[w] for w in sorted(begin)], [end[w] for w in sorted(end)]


@few
@given(st.integers(1, 9), st.integers(1, 12), st.floats(0, 2), st.integers(0, 99))
def test_a_shared_first_come_link(workers, rounds, transfer, seed):
    compute = np.random.default_rng(seed).lognormal(0, 0.5, (workers, rounds))
    report = models.shared_link(compute.tolist(), transfer, idle_watts=1, busy_watts=2)
    begin, end = link_trace(report)
    fast_begin, fast_end = compiled_queues.shared_link(compute, transfer)
    np.testing.assert_allclose(begin, fast_begin, atol=1e-9)
    np.testing.assert_allclose(end, fast_end, atol=1e-9)


def test_a_shared_link_with_ties():
    compute = np.ones((5, 4))
    begin, end = link_trace(models.shared_link(compute.tolist(), 0.25, idle_watts=0, busy_watts=0))
    fast_begin, fast_end = compiled_queues.shared_link(compute, 0.25)
    np.testing.assert_allclose(begin, fast_begin, atol=1e-9)
    np.testing.assert_allclose(end, fast_end, atol=1e-9)


@few
@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(6, 40),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from([0.0, 0.05, 3.0]),
    st.integers(0, 99),
)
def test_master_and_slaves(first, more, packages, near_seconds, far_seconds, seed):
    slaves = averaging_schedule(packages + 6, first, first + more)
    work = np.random.default_rng(seed).uniform(0.1, 2.0, packages)
    report = models.averaging(slaves.tolist(), work.tolist(), 4, near_seconds, far_seconds)
    ends, busy = compiled_queues.averaging(slaves, work, 4, near_seconds, far_seconds)
    assert report.seconds == pytest.approx(ends[-1], abs=1e-9)
    for index, seconds in enumerate(busy):
        device = next(r for r in report.resources if r.name == f"gpu {index}")
        assert device.busy_seconds == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("network", ["ethernet-1", "infiniband-edr"])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_synchronous_steps(overlap, network, jitter):
    cluster = library.cluster_of("6xV100", node_name="summit", network=network)
    cluster = cluster.model_copy(update={"nodes": 2})
    plan = Synchronous(gpus=12, batch=96, overlap=overlap, jitter=jitter, loader="raw")
    step = plan_step(library.workload("resnet-50"), cluster, plan)
    drawn = Jitter.of(plan).factors(7, plan.gpus, np.random.default_rng(3))
    report = models.synchronous(step, drawn)
    fast = step.seconds(drawn.max(axis=1)).sum()
    assert report.seconds == pytest.approx(fast, rel=1e-9)
    busy = next(r for r in report.resources if r.name == "gpu 3").busy_seconds
    assert busy == pytest.approx(
        step.kernel_seconds * drawn[:, 3].sum() + 7 * step.update_seconds, rel=1e-9
    )


def test_tensor_parallel_steps_and_late_input():
    node = library.node("dgx-a100").model_copy(update={"step_seconds": 0.01})
    cluster = Cluster(name="c", node=node, nodes=1)
    plan = Synchronous(gpus=8, tensor=2, batch=16, micro_batch=2, jitter=0.05)
    step = plan_step(library.workload("gpt-1.3b"), cluster, plan)
    for late in (0.0, 100.0):
        step = step._replace(data_loading_seconds=late)
        drawn = Jitter.of(plan).factors(4, 4, np.random.default_rng(1))
        report = models.synchronous(step, drawn)
        assert report.seconds == pytest.approx(step.seconds(drawn.max(axis=1)).sum(), rel=1e-9)


def test_the_slowest_worker_without_keeping_all_numbers():
    plan = Synchronous(gpus=1, jitter=0.2)
    drawn = Jitter.of(plan).factors(50, 30, np.random.default_rng(5))
    kept = Jitter.of(plan).slowest(50, 30, np.random.default_rng(5))
    np.testing.assert_allclose(drawn.max(axis=1), kept, rtol=1e-12)
    sampled = Synchronous(gpus=1, jitter_samples=(1.0, 2.0, 9.0))
    drawn = Jitter.of(sampled).factors(50, 30, np.random.default_rng(5))
    kept = Jitter.of(sampled).slowest(50, 30, np.random.default_rng(5))
    np.testing.assert_allclose(drawn.max(axis=1), kept, rtol=1e-12)


@few
@given(
    st.lists(
        st.tuples(st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0, 1)), min_size=2, max_size=5
    ),
    st.integers(1, 8),
)
def test_pipelines_as_task_graphs(stages, micro_batches):
    forward, backward, send = map(list, zip(*stages, strict=True))
    total, _ = makespan(forward, backward, send[:-1], micro_batches)
    report = models.pipeline(forward, backward, send[:-1], micro_batches)
    assert report.seconds == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_pipeline_reduces_when_its_first_stage_is_done(overlap):
    cluster = library.cluster_of("32xA100-80gb", network="ethernet-25")
    plan = Synchronous(gpus=32, pipeline=8, batch=64, micro_batch=1, overlap=overlap)
    gpt = library.workload("gpt-1.3b")
    step = plan_step(gpt, cluster, plan)
    assert step.bubble_seconds > 0
    reduce = float(step.bucket_all_reduce_seconds.sum())
    assert reduce > 0
    after = step.update_seconds + step.overhead_seconds
    window_seconds = simulate_window(gpt, cluster, plan).report.seconds
    assert step.nominal_seconds == pytest.approx(window_seconds + after)
    # A bucket waits until it is ready and those before it are reduced.
    ready, seconds = step.bucket_ready_seconds, step.bucket_all_reduce_seconds
    last = [sum(seconds[bucket:]) for bucket in range(len(seconds))]
    computed = step.kernel_seconds + step.bubble_seconds
    exposed = step.exposed_communication_seconds
    assert exposed == pytest.approx(max(ready + last) - computed)
    # Some gradients are reduced during the last backward pass.
    assert exposed < 0.99 * reduce if overlap else exposed == pytest.approx(reduce)
    # A slow stage stretches the bubble as it stretches the kernels.
    slow = float(step.seconds(np.array([1.5]))[0])
    assert slow == pytest.approx(max(1.5 * computed, *(1.5 * ready + last)) + after)


def test_equal_stages_take_the_closed_form():
    total, ends = makespan([1.0] * 4, [2.0] * 4, [0.0] * 3, 6)
    assert total == pytest.approx(models.pipeline([1.0] * 4, [2.0] * 4, [0.0] * 3, 6).seconds)
    assert ends == pytest.approx([27.0, 25.0, 23.0, 21.0])


def test_asynchronous_updates():
    rng = np.random.default_rng(2)
    gradient = 0.7 * rng.lognormal(0, 0.05, (6, 200))
    update = 0.2 * rng.lognormal(0, 0.05, 300)
    report, collected = models.asynchronous(gradient, update, 3)
    assert report.seconds >= update.sum()
    fast = staleness_statistics(gradient, update, sub_batch=8, samples=1000)
    mini_batch = np.array(collected[15:]) * 8.0
    assert mini_batch.mean() == pytest.approx(fast.mini_batch.mean, rel=1e-9)
    assert sorted(set(mini_batch)) == pytest.approx(fast.mini_batch.values.tolist())
