"""Plans: conservation, metamorphic relations, memory, power, limits, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carme import library
from carme.errors import InputError
from carme.simulator.analysis.scaling_limits import scaling_limits
from carme.simulator.analysis.search import replicate
from carme.simulator.costs.step import plan_step
from carme.simulator.hardware import COMMUNICATION_ACTIVITY, Cluster, under_cap, watts
from carme.simulator.plans import Asynchronous, Averaging, ParameterServer, Synchronous
from carme.simulator.runs import simulate
from carme.simulator.transformer_costs import transformer_costs
from carme.simulator.workload import Workload

few = settings(max_examples=20, deadline=None)
RESNET = library.workload("resnet-50")
V100 = Cluster(name="v100", node=library.node("dgx-1-v100"), nodes=64)
A100 = Cluster(name="a100", node=library.node("dgx-a100"), nodes=512)

PLANS = [
    (RESNET, V100, Synchronous(gpus=16, batch=512, epochs=2, jitter=0.05)),
    (library.workload("gpt-13b"), A100, Synchronous(gpus=64, tensor=4, pipeline=4, micro_batch=1)),
    (RESNET, V100, Asynchronous(gpus=16, batch=8, jitter=0.05, epochs=1)),
    (RESNET, V100, ParameterServer(gpus=16, batch=32, servers=2, jitter=0.05, epochs=1)),
    (
        library.workload("kaldi-lstm"),
        library.cluster_of("8xtitan-x"),
        Averaging(gpus=8, imbalance=0.05),
    ),
]


@pytest.mark.parametrize(("workload", "cluster", "plan"), PLANS)
def test_energy_and_time_are_conserved(workload, cluster, plan):
    result = simulate(workload, cluster, plan)
    assert sum(result.phases.values()) == pytest.approx(result.seconds)
    by_segment = sum(s.seconds * s.gpu_watts for s in result.segments) * plan.gpus
    assert result.gpu_joules == pytest.approx(by_segment)
    begin, gpu_watts, _ = np.array(result.power_curve()).T
    integral = float((np.diff([*begin, result.seconds]) * gpu_watts).sum()) * plan.gpus
    assert result.gpu_joules == pytest.approx(integral)
    assert result.gpu_joules < result.node_joules <= result.facility_joules
    assert result.average_gpu_watts <= result.peak_gpu_watts
    gpu = cluster.node.gpu.power
    assert gpu.idle_watts <= result.average_gpu_watts <= gpu.limit_watts
    assert result.seconds > 0
    assert simulate(workload, cluster, plan).to_dict() == result.to_dict()


@few
@given(
    st.integers(1, 64),
    st.integers(64, 4096),
    st.sampled_from(["constant", "linear", "square-root", "cube-root"]),
    st.sampled_from(["strong", "weak"]),
    st.integers(1, 5),
)
def test_every_sample_is_processed_as_often_as_the_plan_says(gpus, batch, rule, scaling, epochs):
    plan = Synchronous(gpus=gpus, batch=batch, batch_rule=rule, scaling=scaling, epochs=epochs)
    result = simulate(RESNET, V100, plan)
    passes = epochs * (gpus if scaling == "weak" else 1)
    assert result.epochs == passes
    # The last step of an epoch may be filled up, by less than one batch.
    assert 0 <= result.samples - passes * 1281167 < passes * result.batch


def test_whole_sets_divide_epochs_not_samples():
    nt3 = library.workload("nt3")
    summit = Cluster(name="summit", node=library.node("summit"), nodes=64)
    strong = simulate(nt3, summit, Synchronous(gpus=48, data="whole"))
    assert strong.steps == 8 * 56
    weak = simulate(nt3, summit, Synchronous(gpus=48, data="whole", scaling="weak", epochs=8))
    assert weak.steps == 8 * 56
    assert weak.samples == 8 * 56 * 20 * 48


def faster_link(cluster, factor):
    network = cluster.node.network
    network = network.model_copy(update={"bandwidth": network.bandwidth * factor})
    node = cluster.node.model_copy(update={"network": network})
    return cluster.model_copy(update={"node": node})


@few
@given(
    st.sampled_from([2, 8, 16, 64, 256]),
    st.floats(1.0, 50.0),
    st.booleans(),
    st.sampled_from(["auto", "ring", "tree", "hierarchical"]),
)
def test_a_faster_link_never_slows(gpus, factor, overlap, way):
    plan = Synchronous(gpus=gpus, batch=2048, overlap=overlap, all_reduce=way, jitter=0.05)
    slow = simulate(RESNET, V100, plan).seconds
    assert simulate(RESNET, faster_link(V100, factor), plan).seconds <= slow * (1 + 1e-12)


@few
@given(st.floats(150, 300), st.floats(150, 300), st.sampled_from([1, 8, 32]))
def test_a_higher_cap_never_slows(one, other, gpus):
    low, high = sorted((one, other))
    fast, slow = (
        simulate(RESNET, V100, Synchronous(gpus=gpus, batch=1024, power_cap_watts=cap)).seconds
        for cap in (high, low)
    )
    assert fast <= slow * (1 + 1e-12)


@few
@given(st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 50))
def test_more_jitter_never_speeds_in_expectation(one, other, seed):
    low, high = sorted((one, other))
    slow, fast = (
        simulate(RESNET, V100, Synchronous(gpus=32, batch=1024, jitter=j, seed=seed)).seconds
        for j in (high, low)
    )
    assert slow >= fast * (1 - 1e-3)


def test_jitter_from_measured_samples():
    plain = simulate(RESNET, V100, Synchronous(gpus=8, batch=256)).seconds
    samples = tuple(np.random.default_rng(0).gamma(4, 1, 200))
    jittered = simulate(RESNET, V100, Synchronous(gpus=8, batch=256, jitter_samples=samples))
    assert jittered.seconds > plain
    assert jittered.step_quantiles["0.95"] > jittered.step_quantiles["0.05"]


def test_a_cap_saves_energy_before_it_costs_too_much_time():
    results = {
        cap: simulate(RESNET, V100, Synchronous(gpus=8, batch=256, power_cap_watts=cap))
        for cap in (150, 200, 250, 300)
    }
    assert results[200].gpu_joules < results[300].gpu_joules
    assert results[150].seconds > 1.1 * results[300].seconds
    assert results[150].clock < 0.8
    for cap, result in results.items():
        assert result.peak_gpu_watts <= cap


@pytest.mark.parametrize("cap", [100, 120, 200, 400])
@pytest.mark.parametrize("name", ["resnet-50", "measured"])
def test_waiting_draws_no_more_than_the_cap_and_no_less_than_idle(name, cap):
    gpu = A100.node.gpu
    workload = RESNET
    if name == "measured":
        known = {"gpu": gpu.name, "batch": 16, "seconds": 0.1}
        workload = Workload.model_validate(
            {"name": name, "measured": [known], "parameters": 1e6, "dataset": {"samples": 1000}}
        )
    step = plan_step(workload, A100, Synchronous(gpus=8, batch=128, power_cap_watts=cap))
    assert gpu.power.idle_watts <= step.wait_watts <= min(cap, watts(gpu, COMMUNICATION_ACTIVITY))
    if cap >= 200:
        assert step.wait_watts == watts(gpu, COMMUNICATION_ACTIVITY)


def test_the_capped_clock_follows_the_measured_curve():
    gpu = library.gpu("v100-pcie")
    assert under_cap(gpu, 0.9, None).clock == 1.0
    assert under_cap(gpu, 0.9, 250.0).clock == 1.0
    assert under_cap(gpu, 0.0, 100.0) == (1.0, 37.0)
    assert watts(gpu, 1.0) == 225.0
    clocks = [under_cap(gpu, 0.91, cap).clock for cap in (100, 125, 150, 200)]
    assert clocks == sorted(clocks)


def test_memory_says_what_does_not_fit_and_why():
    big = simulate(library.workload("gpt-13b"), A100, Synchronous(gpus=8, batch=8))
    assert not big.memory.fits
    assert "most is optimizer" in big.notes[0]
    sharded = Synchronous(gpus=64, batch=64, tensor=8, shard_optimizer=True, recompute="full")
    assert simulate(library.workload("gpt-13b"), A100, sharded).memory.fits
    plain = plan_step(library.workload("gpt-1.3b"), A100, Synchronous(gpus=8, batch=64)).memory
    again = plan_step(
        library.workload("gpt-1.3b"), A100, Synchronous(gpus=8, batch=64, recompute="full")
    )
    assert again.memory.activations < plain.activations / 5
    assert again.kernel_seconds > 0


@pytest.mark.parametrize("pipeline", [1, 4])
@pytest.mark.parametrize("layers", [4, 32])
def test_full_recomputation_keeps_each_block_s_input(layers, pipeline):
    """Korthikanti et al. 2022: s·b·h elements for each block and micro-batch in flight; one block
    is rebuilt at a time, whatever is in flight."""
    gpt = library.workload("gpt-6.7b")
    spec = gpt.transformer.model_copy(update={"layers": layers})
    gpt = Workload.model_validate(gpt.model_dump(exclude_unset=True) | {"transformer": spec})
    micro, half = 2, 2
    plan = Synchronous(
        gpus=pipeline, pipeline=pipeline, recompute="full",
        batch=micro * pipeline, micro_batch=micro,
    )  # fmt: skip
    activation_bytes = plan_step(gpt, A100, plan).memory.activations
    rows = transformer_costs(spec)
    one_block = sum(cost.activations for cost in rows if cost.repeat == layers)
    inputs = layers / pipeline * spec.sequence * spec.hidden
    first_stage = inputs * pipeline + one_block
    head = sum(cost.activations for cost in rows if cost.block == 2)
    last_stage = inputs + one_block + head
    # In a pipeline the first stage needs more: it has the most in flight, and the word vectors.
    elements = first_stage if pipeline > 1 else last_stage
    assert activation_bytes == pytest.approx(elements * micro * half)


def test_parameters_are_those_of_the_literature():
    millions = {
        name: library.workload(name).parameter_count / 1e6
        for name in (
            "alexnet",
            "googlenet",
            "resnet-50",
            "vgg-19",
            "bert-large",
            "gpt-175b",
            "u-net",
        )
    }
    expected = {
        "alexnet": 61.0,
        "googlenet": 7.0,
        "resnet-50": 25.6,
        "vgg-19": 143.7,
        "bert-large": 335,
        "gpt-175b": 175_000,
        "u-net": 31.0,
    }
    assert millions == pytest.approx(expected, rel=0.01)


def test_tensor_parallel_pieces_sum_to_the_whole():
    gpt = library.workload("gpt-6.7b")
    whole = plan_step(gpt, A100, Synchronous(batch=8))
    cut = plan_step(gpt, A100, Synchronous(gpus=8, tensor=8, batch=8))
    assert cut.memory.weights == pytest.approx(whole.memory.weights / 8, rel=0.01)
    assert cut.kernel_seconds > whole.kernel_seconds / 8
    assert cut.tensor_parallel_seconds > 0


def test_limits_name_what_binds_and_what_comes_next():
    strong = scaling_limits(RESNET, V100, Synchronous(gpus=8, batch=256, loader="raw"))
    assert strong.limit == "compute"
    assert strong.next_limit in {"skinny products", "communication"}
    assert strong.stalls_at is not None
    assert [r.gpus for r in strong.points][:4] == [1, 2, 4, 8]
    slow_network = faster_link(V100, 1e-4)
    vgg = library.workload("vgg-19")
    comm = scaling_limits(vgg, slow_network, Synchronous(gpus=16, batch=1024, loader="raw"))
    assert comm.limit == "communication"
    jpeg = scaling_limits(
        RESNET, V100, Synchronous(gpus=16, batch=4096, precision="fp16", loaders_per_gpu=1)
    )
    assert jpeg.limit == "input"
    memory = scaling_limits(library.workload("gpt-13b"), A100, Synchronous(gpus=8, batch=8))
    assert memory.limit == "memory"
    ragged = scaling_limits(
        RESNET, V100, Synchronous(gpus=512, batch=16384, jitter=0.6, loader="raw"), max_gpus=512
    )
    assert ragged.limit == "imbalance and bubbles"


def test_a_larger_batch_is_not_free():
    shuffle = library.workload("shufflenet-v2")
    cluster = library.cluster_of("1xv100-pcie")
    small, large = (
        simulate(shuffle, cluster, Synchronous(batch=batch, to_target=True))
        for batch in (256, 4096)
    )
    assert large.epochs == pytest.approx(8 * (1 + 4096 / 450))
    assert small.epochs < large.epochs
    assert small.seconds < large.seconds


def test_loading_at_the_start_can_dominate():
    nt3 = library.workload("nt3")
    summit = Cluster(
        name="summit",
        node=library.node("summit"),
        nodes=64,
        storage=library.storage("summit-gpfs"),
    )
    plain = simulate(nt3, summit, Synchronous(gpus=384, data="whole"))
    quick = simulate(nt3, summit, Synchronous(gpus=384, data="whole", loader="chunked"))
    assert plain.phases["load"] == pytest.approx(153, abs=3)
    assert plain.phases["load"] > plain.phases["compute"]
    assert quick.phases["load"] == pytest.approx(plain.phases["load"] * 19.55 / 103.97, rel=0.01)


def test_replicas_spread_and_shrink_with_the_run():
    plan = Synchronous(gpus=8, batch=8192, epochs=1, jitter=0.3, sample_steps=50)
    replicas = replicate(RESNET, V100, plan, 20)
    quantiles = replicas.quantiles()
    assert quantiles["seconds"]["0.05"] < quantiles["seconds"]["0.95"]
    longer = replicate(RESNET, V100, plan.model_copy(update={"epochs": 100.0}), 20)
    spread, longer_spread = (r.seconds.std() / r.seconds.mean() for r in (replicas, longer))
    assert longer_spread == pytest.approx(spread / 10, rel=0.02)
    again = replicate(RESNET, V100, plan, 20)
    np.testing.assert_array_equal(replicas.seconds, again.seconds)


def test_servers_that_are_too_few_make_workers_queue():
    one, four = (
        simulate(RESNET, V100, ParameterServer(gpus=64, batch=32, servers=n, epochs=1))
        for n in (1, 4)
    )
    assert one.seconds > four.seconds
    assert one.phases["wait"] > four.phases["wait"]
    assert one.staleness is not None
    assert one.staleness.mean == pytest.approx(64, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "cluster", "plan", "message"),
    [
        (RESNET, V100, {"gpus": 1024, "batch": 4096}, "it has 512"),
        (RESNET, V100, {"gpus": 8, "batch": 4}, "at least 8"),
        (RESNET, V100, {"gpus": 2, "tensor": 2}, "only transformers"),
        (library.workload("gpt-13b"), A100, {"gpus": 3, "tensor": 3}, "divisor of 40"),
        (library.workload("bert-base"), A100, {"gpus": 13, "pipeline": 13}, "at most 12 stages"),
        (RESNET, V100, {"power_cap_watts": 50}, "150 to 300 W"),
        (RESNET, V100, {"precision": "fp8"}, "it has fp64, fp32, fp16"),
        (RESNET, V100, {"loader": "carrier-pigeon"}, "it has jpeg, raw"),
        (library.workload("kaldi-lstm"), V100, {"gpus": 1}, "it was on titan-x"),
    ],
)
def test_impossible_plans_are_refused_with_what_is_possible(workload, cluster, plan, message):
    with pytest.raises(InputError, match=message):
        simulate(workload, cluster, Synchronous(**plan))


def test_a_pipeline_needs_a_layer_a_stage():
    layers = [{"kind": "dense", "inputs": 8, "outputs": 8}] * 2
    two = Workload.model_validate({"name": "two", "layers": layers, "dataset": {"samples": 10}})
    with pytest.raises(InputError, match="a 3-way pipeline of 2 layers"):
        simulate(two, V100, Synchronous(gpus=3, pipeline=3, batch=9))
    assert simulate(two, V100, Synchronous(gpus=2, pipeline=2, batch=8)).seconds > 0
