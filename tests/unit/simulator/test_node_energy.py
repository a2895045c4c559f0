"""Predicted energy: what the exporter's ledger would charge to the job, and what a meter reads."""

import pytest

from carme import library
from carme.predict.prediction import Rates, predict
from carme.simulator import Synchronous, simulate
from carme.simulator.runs.result import JOULES_PER_KWH, charged_host_watts
from carme_monitoring.energy.shares import GpuSlot, JobPresence, NodeActivity, rest_weights

BERT = library.workload("bert-base")
A100 = library.cluster_of("16xA100")
NODE = A100.node


@pytest.mark.parametrize("gpus", [1, 3, 8])
@pytest.mark.parametrize("cpus", [1, 16, 64])
@pytest.mark.parametrize("memory", [0.05, 0.9])
def test_the_idle_host_is_charged_as_the_ledger_charges_the_rest(gpus, cpus, memory):
    slots = [GpuSlot(f"gpu{i}", f"gpu{i}") for i in range(NODE.gpus)]
    held = tuple(slot.name for slot in slots[:gpus])
    job = JobPresence(jobid=7, start_ns=0, slots=held, cpus=cpus, memory_bytes=memory * 1e12)
    activity = NodeActivity(cpus=64, memory_bytes=1e12)
    charged = rest_weights([job], slots, activity, (0, 10**9))[7]
    plan = Synchronous(gpus=gpus, node_share=max(cpus / 64, memory))
    idle_watts, _ = charged_host_watts(NODE, plan)
    assert idle_watts == pytest.approx(charged * NODE.idle_watts)


@pytest.mark.parametrize(("node_share", "held_nodes"), [(0.6, 1.5), (0.75, 1.5), (0.9, 1.8)])
def test_the_share_of_a_request_holds_on_each_of_its_nodes(node_share, held_nodes):
    """Two nodes with 6 of 8 GPUs each."""
    idle_watts, _ = charged_host_watts(NODE, Synchronous(gpus=12, node_share=node_share))
    assert idle_watts == pytest.approx(held_nodes * NODE.idle_watts)


def test_one_gpu_of_eight_is_charged_an_eighth_of_the_host_and_no_idle_gpu():
    result = simulate(BERT, A100, Synchronous(gpus=1, epochs=1))
    eighth = NODE.busy_watts / 8 * result.seconds
    assert result.node_joules == pytest.approx(result.gpu_joules + eighth)
    # The meter also reads the idle draw of the other seven eighths and of the other GPUs.
    unused = 7 * (NODE.idle_watts / 8 + NODE.gpu.power.idle_watts) * result.seconds
    assert result.whole_node_joules == pytest.approx(result.node_joules + unused)


def test_startup_is_charged_at_idle_draw():
    without = simulate(BERT, A100, Synchronous(gpus=2, epochs=1))
    plan = Synchronous(gpus=2, epochs=1, startup_seconds=100)
    startup = simulate(BERT, A100, plan).node_joules - without.node_joules
    assert startup == pytest.approx(100 * (NODE.idle_watts / 4 + 2 * NODE.gpu.power.idle_watts))


@pytest.mark.parametrize("gpus", [8, 16])
def test_full_nodes_are_charged_as_a_whole(gpus):
    result = simulate(BERT, A100, Synchronous(gpus=gpus, epochs=1))
    assert result.node_joules == pytest.approx(result.whole_node_joules)


def test_a_job_that_holds_all_processors_is_charged_all_of_the_idle_host():
    small = simulate(BERT, A100, Synchronous(gpus=12, epochs=1))
    large = simulate(BERT, A100, Synchronous(gpus=12, epochs=1, node_share=1))
    more = large.node_joules - small.node_joules
    assert more == pytest.approx(NODE.idle_watts * large.seconds / 2)
    assert large.node_joules <= large.whole_node_joules
    # Less than the share of the GPUs changes nothing: the largest share counts.
    least = simulate(BERT, A100, Synchronous(gpus=12, epochs=1, node_share=0.01))
    assert least.node_joules == small.node_joules


def test_the_power_curve_integrates_to_the_charged_energy():
    result = simulate(BERT, A100, Synchronous(gpus=12, epochs=1))
    begin, _, node_watts = zip(*result.power_curve(), strict=True)
    ends = (*begin[1:], result.seconds)
    joules = sum((e - b) * w for b, e, w in zip(begin, ends, node_watts, strict=True))
    assert joules * result.nodes == pytest.approx(result.node_joules)


def test_a_prediction_has_both_figures_and_its_emissions_and_cost_are_of_the_charged_one():
    rates = Rates(grams_co2_per_kwh=400, pue=1.2, price_per_kwh=0.3)
    one = predict(BERT, A100, Synchronous(gpus=1, epochs=1), rates=rates, detail=False)
    kwh = 1.2 * one.node_energy.value / JOULES_PER_KWH
    assert one.emissions.value == pytest.approx(400 * kwh)
    assert one.cost.value == pytest.approx(0.3 * kwh)
    for energy in (one.node_energy, one.whole_node_energy):
        assert energy.low < energy.value < energy.high
    assert one.gpu_energy.value < one.node_energy.value < one.whole_node_energy.value


def test_one_gpu_of_a_large_node_is_not_worse_than_a_small_node_for_its_idle_neighbours():
    """Billed for the whole host, one A100 would seem to take more energy than four T4."""
    a100 = predict(BERT, A100, Synchronous(gpus=1, epochs=1), detail=False)
    t4 = predict(BERT, library.cluster_of("4xT4"), Synchronous(gpus=4, epochs=1), detail=False)
    assert a100.time.value < t4.time.value
    assert a100.node_energy.value < t4.node_energy.value
    assert a100.whole_node_energy.value > t4.whole_node_energy.value
