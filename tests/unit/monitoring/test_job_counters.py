"""Waste, traffic, emissions and cost per job."""

import json
from pathlib import Path

import pytest

from carme_monitoring.accounting.counters import EnergyFactors, JobCounters
from carme_monitoring.energy.shares import GpuSlot, JobPresence
from carme_monitoring.sampler import GpuActivity

SECOND = 10**9
SLOTS = [GpuSlot("A", "A"), GpuSlot("m1", "B", 0.5)]
SPAN = (0, 10 * SECOND)


def test_an_idle_holder_is_waste() -> None:
    counters = JobCounters()
    job = JobPresence(1, 0, None, ("A",), cpus=4)
    counters.count_use([job], SLOTS, {"A": GpuActivity(10, 9, 0.5, 520_000)}, {1: 10.0}, SPAN)
    tally = counters.of(1)
    assert (tally.gpu_held_seconds, tally.gpu_idle_seconds) == (10, 9)
    assert tally.gpu_idle_joules == 520
    assert tally.cpu_idle_seconds == 30
    assert counters.node_gpu_idle_seconds == 9


def test_a_slice_is_held_by_its_size_and_never_called_idle() -> None:
    counters = JobCounters()
    counters.count_use(
        [JobPresence(1, 0, None, ("m1",))], SLOTS, {"B": GpuActivity(10, 10, 0, 5)}, {}, SPAN
    )
    assert (counters.of(1).gpu_held_seconds, counters.of(1).gpu_idle_seconds) == (5, 0)


def test_traffic_is_exact_for_a_job_alone_and_shared_otherwise() -> None:
    counters = JobCounters()
    alone, other = JobPresence(1, 0, None), JobPresence(2, 0, None)
    counters.count_traffic([alone], {}, 1000, 500, SPAN)
    assert counters.of(1).network == {"exclusive/receive": 1000, "exclusive/send": 500}
    counters.count_traffic([alone, other], {1: 3.0, 2: 1.0}, 1000, 0, SPAN)
    assert counters.of(1).network["share/receive"] == 750
    assert counters.of(2).network["share/receive"] == 250
    late = JobPresence(3, 5 * SECOND, None)
    counters.count_traffic([late], {}, 100, 0, SPAN)  # not here all the time: not exact
    assert counters.of(3).network["share/receive"] == 100
    counters.count_traffic([], {}, 100, 0, SPAN)


def test_factors_apply_when_energy_is_used(tmp_path: Path) -> None:
    file, static, counters = tmp_path / "factors.json", EnergyFactors(400, 0.3), JobCounters()
    kwh = 3_600_000_000_000
    counters.count_costs({1: kwh}, {}, static.updated_from(file))
    file.write_text(json.dumps({"grams_per_kwh": 100, "price_per_kwh": "x"}))
    counters.count_costs({1: 3 * kwh}, {}, static.updated_from(file))
    assert counters.of(1).emissions_grams == pytest.approx(400 + 2 * 100)
    assert counters.of(1).cost == pytest.approx(3 * 0.3)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"grams_per_kwh": -1}', "\xff", "null"])
def test_a_broken_factors_file_means_the_static_ones(tmp_path: Path, text: str) -> None:
    file = tmp_path / "factors.json"
    file.write_text(text, encoding="latin-1")
    assert EnergyFactors(400, 0.3).updated_from(file) == EnergyFactors(400, 0.3)
