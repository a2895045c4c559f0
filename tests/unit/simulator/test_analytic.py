"""Cases with a known answer."""

import numpy as np
import pytest

from carme import library
from carme.simulator.analysis.timeline import simulate_window
from carme.simulator.costs.collectives import (
    CollectiveGroup,
    all_reduce_seconds,
    broadcast_seconds,
    collective_group,
)
from carme.simulator.costs.kernels import kernel_work, layer_times
from carme.simulator.costs.products import PROLOGUE_DEPTH
from carme.simulator.costs.step import plan_step
from carme.simulator.events import compiled_queues
from carme.simulator.events.engine import Simulation
from carme.simulator.events.operations import Transfer, Wait
from carme.simulator.frameworks import FRAMEWORKS
from carme.simulator.hardware import Cluster
from carme.simulator.layers import Attention
from carme.simulator.pipeline_schedule import makespan, stage_schedule
from carme.simulator.plans import Synchronous, averaging_schedule
from carme.simulator.runs import simulate
from carme.simulator.runs.asynchronous import closed_form, simulate_staleness
from carme.simulator.runs.jitter import Jitter
from carme.simulator.workload import LayerArrays

V100 = library.node("dgx-1-v100")


def test_one_gpu_takes_its_kernels_update_and_nothing_else():
    workload = library.workload("resnet-50")
    result = simulate(workload, library.cluster_of("1xV100"), Synchronous(batch=32, epochs=1))
    work = kernel_work(workload.arrays, 32, V100.gpu, "fp32")
    times = layer_times(work, V100.gpu, FRAMEWORKS["pytorch"].host_seconds)
    expected = float((times.forward_seconds + times.backward_seconds).sum())
    assert result.phases["compute"] / result.steps == pytest.approx(expected)
    assert result.phases["communication"] == 0
    assert result.steps == np.ceil(1281167 / 32)


@pytest.mark.parametrize("name", ["gpt-125m", "gpt-6.7b", "bert-large"])
def test_a_transformer_does_the_operations_of_theory(name):
    """Narayanan et al. 2021: 24·s·h² + 4·s²·h a block forward, and 2·s·h·V for the output."""
    workload = library.workload(name)
    spec = workload.transformer
    s, h = spec.sequence, spec.hidden
    expected = spec.layers * (24 * s * h * h + 4 * s * s * h) + 2 * s * h * spec.vocabulary
    assert workload.forward_flops == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("heads", "width"), [(1, 128), (16, 64), (32, 128), (2, 16384)])
def test_attention_takes_its_operations_and_bytes_once(heads, width):
    """4·s²·h operations; q, k, v and the output once, the scores three times each way (softmax and
    dropout are kernels of their own): the longer of the two, and four launches."""
    s, batch, gpu = 1024, 4, library.gpu("a100-80gb")
    cost = Attention(kind="attention", heads=heads, width=width, sequence=s).cost()
    rate = gpu.peak_flops["fp16"] * gpu.efficiency("fp16")
    compute = batch * 4 * s * s * heads * width / rate
    moved = batch * 2 * (4 * s * heads * width + 6 * heads * s * s)
    memory = moved / (gpu.memory_bandwidth * gpu.bandwidth_efficiency)
    starts = 4 * gpu.kernel_seconds
    times = layer_times(kernel_work(LayerArrays.of((cost,)), batch, gpu, "fp16"), gpu)
    least = max(compute, memory)
    # The last wave of tiles may be partly empty, and each tile has a begin and an end.
    waves = batch * heads * (s / gpu.tile) ** 2 / gpu.units
    full = np.ceil(waves) / waves * compute * (1 + PROLOGUE_DEPTH / width)
    assert (
        least * (1 - 1e-9) <= times.forward_seconds.sum() - starts <= max(memory, full) * (1 + 1e-9)
    )
    assert times.backward_seconds.sum() - 2 * starts >= 2 * least * (1 - 1e-9)
    assert cost.kernels * cost.launches == 4


def test_an_ideal_network_scales_perfectly_in_weak_scaling():
    link = V100.gpu_link.model_copy(
        update={"latency_seconds": 0.0, "bandwidth": 1e30, "efficiency": 1.0}
    )
    ideal = V100.model_copy(update={"gpu_link": link, "network": link, "collective_seconds": 0.0})
    cluster = Cluster(name="ideal", node=ideal, nodes=64)
    workload = library.workload("resnet-50")
    one = plan_step(workload, cluster, Synchronous(batch=32, loader="raw"))
    many = plan_step(
        workload, cluster, Synchronous(gpus=512, batch=32, batch_rule="linear", loader="raw")
    )
    assert many.nominal_seconds == pytest.approx(one.nominal_seconds, rel=1e-9)


def test_a_queue_with_random_arrivals_is_m_d_1():
    """Mean wait ρ/(2(1−ρ)) service times; many random senders, one first-come link."""
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / 0.7, 60_000))
    simulation = Simulation()
    link = simulation.link("link", bandwidth=1.0)
    waits = []

    def message(at):
        yield Wait(at)
        asked = simulation.now
        yield Transfer(link, 1.0)
        waits.append(simulation.now - asked - 1.0)

    for at in arrivals:
        simulation.process(message(float(at)))
    simulation.run()
    assert np.mean(waits) == pytest.approx(0.7 / (2 * 0.3), rel=0.06)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_ring_formula_in_a_node(gpus):
    link = V100.gpu_link
    seconds = all_reduce_seconds(1e9, collective_group(gpus, V100), V100, "ring")
    expected = (
        V100.collective_seconds
        + 2 * (gpus - 1) * link.latency_seconds
        + 2 * (gpus - 1) / gpus * 1e9 / link.rate
    )
    assert seconds == pytest.approx(expected)


def test_trees_have_less_latency_and_hierarchies_fewer_steps():
    group = CollectiveGroup(8, 64)
    small = {w: all_reduce_seconds(1e3, group, V100, w) for w in ("ring", "tree", "hierarchical")}
    assert small["tree"] < small["hierarchical"] < small["ring"]
    assert all_reduce_seconds(1e3, group, V100) == small["tree"]
    assert all_reduce_seconds(0, group, V100) == 0
    assert all_reduce_seconds(1e9, CollectiveGroup(1, 1), V100) == 0
    assert broadcast_seconds(1e9, CollectiveGroup(1, 1), V100) == 0


@pytest.mark.parametrize(("tensor", "pipeline"), [(8, 1), (4, 1), (2, 2), (8, 2), (1, 1)])
def test_groups_that_reduce_at_once_share_the_adapters_of_their_node(tensor, pipeline):
    """All gradients of a node leave over its adapters, however many groups they belong to."""
    cluster = library.cluster_of("32xA100-80gb")
    node = cluster.node
    plan = Synchronous(
        gpus=32, tensor=tensor, pipeline=pipeline, overlap=False, micro_batch=1, batch=64,
        all_reduce="hierarchical",
    )  # fmt: skip
    step = plan_step(library.workload("gpt-6.7b"), cluster, plan)
    # The GPUs of a stage are next to each other, tensor-parallel ones first.
    nodes = min(4 // pipeline, plan.data_parallel)
    groups = tensor
    sent = groups * 2 * (nodes - 1) / nodes * step.gradient_bytes
    least = sent / (node.adapters * node.network.rate)
    inside = node.gpus // groups
    within = 2 * (inside - 1) / inside * step.gradient_bytes / node.gpu_link.rate
    assert float(step.bucket_all_reduce_seconds.sum()) == pytest.approx(least + within, rel=2e-3)
    # What leaves the node while it is reduced between nodes only is what its adapters carry.
    window = simulate_window(library.workload("gpt-6.7b"), cluster, plan, 1)
    carried = window.bytes_per_second * step.bucket_all_reduce_seconds.sum()
    assert carried == pytest.approx(sent, rel=1e-9)


def test_groups_inside_a_node_do_not_slow_each_other():
    """A GPU's link is its own, and it is in one group."""
    alone = all_reduce_seconds(1e9, CollectiveGroup(2, 1), V100)
    assert all_reduce_seconds(1e9, collective_group(2, V100, 4), V100) == alone


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 16), (8, 8)])
def test_the_pipeline_bubble(stages, micro_batches):
    total, _ = makespan([1.0] * stages, [2.0] * stages, [0.0] * (stages - 1), micro_batches)
    bubble = 1 - 3.0 * micro_batches / total
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_a_long_step_of_a_pipeline_is_continued_evenly(monkeypatch):
    stages = ([1.0, 1.3, 0.9], [2.0, 2.2, 2.5], [0.1, 0.3])
    exact, ends = makespan(*stages, 2000)
    monkeypatch.setattr("carme.simulator.pipeline_schedule.MAX_SLOTS", 100)
    total, continued = makespan(*stages, 2000)
    assert total == pytest.approx(exact, rel=1e-9)
    assert continued == pytest.approx(ends, rel=1e-9)


def test_every_stage_does_every_micro_batch_once_each_way():
    for stage in range(4):
        slots = list(stage_schedule(stage, 4, 7))
        assert sorted(slots) == sorted({*slots})
        assert len(slots) == 14
        # 1F1B: never more than the stages left in flight.
        in_flight = np.cumsum([-1 if slot.backward else 1 for slot in slots])
        assert in_flight.max() == 4 - stage


def test_the_number_of_slaves_grows_as_kaldi_lets_it():
    slaves = averaging_schedule(1061, 1, 8)
    assert len(slaves) == 235
    assert slaves[0] == 1
    assert slaves[-1] == 8
    assert slaves.sum() == pytest.approx(1061, rel=0.01)


def test_equal_packages_take_equal_iterations():
    slaves = averaging_schedule(40, 2, 6)
    ends, busy = compiled_queues.averaging(slaves, np.full(40, 3.0), 8, 0.0, 0.0)
    assert ends[-1] == pytest.approx(3.0 * len(slaves))
    assert busy.sum() == pytest.approx(3.0 * slaves.sum())


def test_asynchronous_means_agree_with_the_closed_form():
    formula = closed_form(
        gradient_seconds=0.7, update_seconds=0.2, gpus=64, sub_batch=8, samples=10_000
    )
    events = simulate_staleness(
        gradient_seconds=0.7,
        update_seconds=0.2,
        gpus=64,
        sub_batch=8,
        samples=10_000,
        jitter=Jitter(cv=0.05),
        update_jitter=0.05,
        updates=3000,
    )
    assert events.mini_batch.mean == pytest.approx(formula.mini_batch.mean, rel=0.02)
    assert events.staleness.mean == pytest.approx(formula.staleness.mean, rel=0.02)
    assert formula.staleness.mean == pytest.approx(0.7 / 0.2 + 1)
    assert formula.mini_batch.shares.sum() == pytest.approx(1)


def test_without_jitter_the_phases_lock():
    """All GPUs finish together: updates get all gradients or none, which the formula cannot say."""
    formula = closed_form(
        gradient_seconds=0.7, update_seconds=0.2, gpus=64, sub_batch=8, samples=10_000
    )
    locked = simulate_staleness(
        gradient_seconds=0.7, update_seconds=0.2, gpus=64, sub_batch=8, samples=10_000
    )
    assert set(locked.mini_batch.values) == {0.0, 512.0}
    assert locked.mini_batch.deviation > 5 * formula.mini_batch.deviation


def test_the_spread_of_the_closed_form_is_binomial():
    formula = closed_form(
        gradient_seconds=1.0, update_seconds=2.25, gpus=16, sub_batch=4, samples=1000
    )
    assert formula.mini_batch.mean == pytest.approx(16 * 4 * 2.25)
    assert formula.mini_batch.deviation == pytest.approx(4 * np.sqrt(16 * 0.25 * 0.75))
