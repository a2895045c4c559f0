"""The ledger balances to the microjoule, whatever happens."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carme_monitoring.energy.accountant import (
    EnergyAccountant,
    EnergyReading,
    RaplZone,
)
from carme_monitoring.energy.ledger import SYSTEM, UNALLOCATED, Ledger, split
from carme_monitoring.energy.shares import (
    IDLE_WEIGHT,
    GpuSlot,
    JobPresence,
    NodeActivity,
    cpu_weights,
    gpu_weights,
    memory_weights,
    rest_weights,
)

from .conftest import restarted

SECOND = 10**9
RANGE_UJ = 60_000_000
GPUS = ("A", "B")
SLOTS = tuple(GpuSlot(name, name) for name in GPUS)


@dataclass
class Machine:
    """An independent model of a node: powers in milliwatts, energies in integer nanojoules.

    It knows who holds what at every moment and adds up by itself; the accountant sees only
    counters that are cut to their resolution, wrap, reset, vanish or lag.
    """

    now_ns: int = 10 * SECOND
    watts: dict[str, int] = field(default_factory=lambda: {"A": 50, "B": 60, "cpu": 80, "fan": 30})
    nj: dict[str, int] = field(default_factory=dict)
    zero_nj: dict[str, int] = field(default_factory=dict)
    jobs: dict[int, list[Any]] = field(default_factory=dict)
    """job → [gpus, start, end]"""
    truth_nj: dict[int, int] = field(default_factory=dict)
    lagging_nj: int = 0

    def run(self, ns: int) -> None:
        self.lagging_nj = self.total_nj
        for name, watts in self.watts.items():
            self.nj[name] = self.nj.get(name, 0) + watts * ns
        for jobid, (gpus, _, end) in self.jobs.items():
            if end is None:
                spent = sum(self.watts[gpu] for gpu in gpus) * ns
                self.truth_nj[jobid] = self.truth_nj.get(jobid, 0) + spent
        self.now_ns += ns

    @property
    def total_nj(self) -> int:
        return sum(self.nj.values())

    def free(self) -> list[str]:
        held = {gpu for gpus, _, end in self.jobs.values() if end is None for gpu in gpus}
        return [gpu for gpu in GPUS if gpu not in held]

    def read(self, without: str = "", meter: str = "") -> EnergyReading:
        mj = {
            gpu: (self.nj.get(gpu, 0) - self.zero_nj.get(gpu, 0)) // 10**6
            for gpu in GPUS
            if gpu != without
        }
        cpu = RaplZone(self.nj.get("cpu", 0) // 1000 % RANGE_UJ, RANGE_UJ, "cpu")
        lag = self.lagging_nj if meter == "lagging" else self.total_nj
        return EnergyReading(
            self.now_ns,
            gpu_mj=mj,
            zones={} if without == "cpu" else {"intel-rapl:0": cpu},
            meter_uj=lag // 1000 if meter in ("exact", "lagging") else None,
            meter_watts=float(sum(self.watts.values())) if meter == "gauge" else None,
        )

    def presences(self) -> list[JobPresence]:
        return [
            JobPresence(jobid, start, end, tuple(gpus), cpus=2, memory_bytes=10)
            for jobid, (gpus, start, end) in self.jobs.items()
        ]


ACTIVITY = NodeActivity(cpus=4, memory_bytes=100, system_memory_bytes=5)
steps = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 400)),
    st.tuples(st.just("watts"), st.sampled_from([*GPUS, "cpu", "fan"]), st.integers(0, 140)),
    st.tuples(st.just("start"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("read"), st.sampled_from(["", "A", "cpu"])),
    st.tuples(st.just("reset"), st.sampled_from(GPUS)),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("clock"), st.integers(1, 5)),
    st.tuples(st.just("absurd"), st.sampled_from(GPUS)),
)


def check(ledger: Ledger, before: dict[int, dict[str, int]], forgotten: int = 0) -> None:
    assert sum(ledger.totals.values()) + ledger.carry == ledger.metered
    by_jobs = sum(sum(parts.values()) for parts in ledger.accounts.values())
    assert by_jobs + forgotten == sum(
        part for (who, _), part in ledger.totals.items() if who == "jobs"
    )
    for jobid, parts in ledger.accounts.items():
        for component, part in parts.items():
            assert part >= before.get(jobid, {}).get(component, 0)
    assert all(part >= 0 for part in ledger.totals.values())


@settings(max_examples=150, deadline=None)
@given(
    history=st.lists(steps, min_size=1, max_size=40),
    meter=st.sampled_from(["", "exact", "lagging", "gauge"]),
)
def test_it_balances_over_random_histories(history: list[Any], meter: str) -> None:
    machine, accountant, next_job, forgotten = Machine(), EnergyAccountant(), 1, 0

    def settle(without: str = "", reading: EnergyReading | None = None) -> None:
        before = {job: dict(parts) for job, parts in accountant.ledger.accounts.items()}
        taken = reading or machine.read(without, meter)
        accountant.settle(taken, machine.presences(), SLOTS, ACTIVITY)
        check(accountant.ledger, before, forgotten)

    settle()
    for step in history:
        match step:
            case ("run", hundredths):
                machine.run(hundredths * SECOND // 100)
            case ("watts", name, watts):
                machine.watts[name] = watts
            case ("start", count, told) if machine.free():
                if told:
                    settle()
                machine.jobs[next_job] = [machine.free()[:count], machine.now_ns, None]
                next_job += 1
            case ("end", number, told):
                live = [job for job, (_, _, end) in machine.jobs.items() if end is None]
                if live:
                    if told:
                        settle()
                    machine.jobs[live[number % len(live)]][2] = machine.now_ns
            case ("read", without):
                settle(without)
            case ("reset", gpu):
                machine.zero_nj[gpu] = machine.nj.get(gpu, 0)
            case ("restart", same_boot):
                accounts = accountant.ledger.accounts.values()
                forgotten += 0 if same_boot else sum(sum(parts.values()) for parts in accounts)
                accountant = restarted(accountant, same_boot)
            case ("clock", seconds):  # a reading that claims to be from the past
                late = machine.read("", meter)
                settle(reading=EnergyReading(machine.now_ns - seconds * SECOND, late.gpu_mj))
            case ("absurd", gpu):
                settle(reading=EnergyReading(machine.now_ns + 1, {gpu: 2**62}))
                machine.now_ns += 1
    machine.run(SECOND)
    settle()


quiet_steps = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 400)),
    st.tuples(st.just("watts"), st.sampled_from(GPUS), st.integers(0, 140)),
    st.tuples(st.just("start"), st.integers(1, 2)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.sampled_from(["", "A", "B", "cpu"])),
    st.tuples(st.just("restart")),
)


@settings(max_examples=100, deadline=None)
@given(history=st.lists(quiet_steps, min_size=1, max_size=40))
def test_no_joule_is_lost_with_counters(history: list[Any]) -> None:
    """Whatever vanishes for a while or restarts: in the end all that was used is booked."""
    machine, accountant = Machine(), EnergyAccountant()

    def settle(without: str = "") -> None:
        accountant.settle(machine.read(without), machine.presences(), SLOTS, ACTIVITY)

    settle()
    for step in history:
        live = [job for job, (_, _, end) in machine.jobs.items() if end is None]
        match step:
            case ("run", hundredths):
                machine.run(hundredths * SECOND // 100)
            case ("watts", name, watts):
                machine.watts[name] = watts
            case ("start", count) if machine.free():
                gpus = machine.free()[:count]
                machine.jobs[len(machine.jobs) + 1] = [gpus, machine.now_ns, None]
            case ("end", number) if live:
                machine.jobs[live[number % len(live)]][2] = machine.now_ns
            case ("read", without):
                settle(without)
            case ("restart",):
                accountant = restarted(accountant)
    machine.run(SECOND)
    settle()
    used = sum(machine.nj[gpu] // 10**6 for gpu in GPUS) * 1000
    booked = sum(part for (_, name), part in accountant.ledger.totals.items() if name == "gpu")
    assert booked == used


@settings(max_examples=100, deadline=None)
@given(
    powers=st.lists(st.integers(0, 700), min_size=2, max_size=30),
    times=st.lists(st.integers(1, 10**10), min_size=2, max_size=30),
    restart=st.booleans(),
)
def test_a_job_alone_is_charged_what_the_model_spent(
    powers: list[int], times: list[int], restart: bool
) -> None:
    machine, accountant = Machine(), EnergyAccountant()

    def settle() -> None:
        accountant.settle(machine.read(meter="exact"), machine.presences(), SLOTS, whole)

    whole = NodeActivity(cpus=2, memory_bytes=10)
    machine.run(3 * SECOND)
    settle()
    machine.jobs[7] = [list(GPUS), machine.now_ns, None]
    began = machine.total_nj
    for watts, ns in zip(powers, times, strict=False):
        machine.watts["A"], machine.watts["B"] = watts, 2 * watts
        machine.watts["cpu"] = watts // 8
        machine.run(ns)
        settle()
        if restart:
            accountant = restarted(accountant)
    machine.jobs[7][2] = machine.now_ns
    spent, gpu_spent = machine.total_nj - began, machine.truth_nj[7]
    machine.run(5 * SECOND)
    settle()
    parts = accountant.ledger.job(7)
    assert parts.get("gpu", 0) == pytest.approx(gpu_spent / 1000, abs=4000)  # 2 counters of 1 mJ
    assert sum(parts.values()) == pytest.approx(spent / 1000, abs=4010)
    assert accountant.ledger.estimated.get(7, 0) == 0


@given(st.integers(1, 10**15), st.dictionaries(st.integers(1, 50), st.floats(0, 1e9), max_size=20))
def test_split_is_exact(amount: int, weights: dict[int, float]) -> None:
    parts = split(amount, dict(weights))
    if any(weight > 0 for weight in weights.values()):
        assert sum(parts.values()) == amount
        assert all(part >= 0 for part in parts.values())
    else:
        assert parts == {}


def test_a_lagging_meter_leaves_a_carry_and_pays_it_back() -> None:
    ledger = Ledger()
    ledger.begin_meter()
    ledger.charge("gpu", 100, {1: 1.0})
    assert ledger.carry == -100
    ledger.meter(60, {1: 1.0}, estimated=False)
    assert ledger.carry == -40
    assert ledger.job(1) == {"gpu": 100}
    ledger.meter(90, {1: 1.0, UNALLOCATED: 1.0}, estimated=False)
    assert ledger.carry == 0
    assert ledger.job(1) == {"gpu": 100, "rest": 25}
    assert sum(ledger.totals.values()) == ledger.metered == 150


def test_a_gauge_that_is_gone_stops_being_waited_for() -> None:
    machine, accountant = Machine(), EnergyAccountant(max_step_seconds=30)
    for meter in ("gauge", "gauge", "", "", "", "", "gauge", "gauge"):
        accountant.settle(machine.read(meter=meter), [], SLOTS, ACTIVITY)
        check(accountant.ledger, {})
        machine.run(15 * SECOND)
        if machine.now_ns == 100 * SECOND:  # the fourth reading without it
            assert not accountant.ledger.has_meter
            assert accountant.ledger.carry == 0
    assert accountant.ledger.totals[UNALLOCATED, "rest"] > 0


def _settle_gpu(accountant: EnergyAccountant, seconds: int, watts: int, has_counter: bool) -> None:
    """A GPU that draws `watts` all the time, with or without its counter at this moment."""
    reading = EnergyReading(
        seconds * SECOND,
        gpu_mj={"A": seconds * watts * 1000} if has_counter else {},
        gpu_watts={} if has_counter else {"A": watts},
    )
    accountant.settle(reading, [JobPresence(1, 0, None, ("A",))], SLOTS, NodeActivity())


def test_a_counter_that_is_away_for_a_moment_is_waited_for() -> None:
    accountant = EnergyAccountant()
    for seconds in range(0, 1816, 15):
        _settle_gpu(accountant, seconds, 100, has_counter=seconds not in (15, 1800))
    assert accountant.ledger.job(1) == {"gpu": 181_500 * 10**6}
    assert accountant.ledger.metered == sum(accountant.ledger.totals.values())


def test_a_counter_takes_over_from_the_gauge_without_a_gap() -> None:
    accountant = EnergyAccountant()
    for seconds in range(0, 121, 15):
        _settle_gpu(accountant, seconds, 100, has_counter=seconds >= 60 and seconds != 90)
    assert accountant.ledger.job(1) == {"gpu": 12_000 * 10**6}


def test_shared_gpus_by_sm_time_and_slices_by_size() -> None:
    jobs = [JobPresence(1, 0, None, ("A",)), JobPresence(2, 0, None, ("A",))]
    busy = NodeActivity(sm_share={("A", 1): 30.0, ("A", 2): 10.0})
    assert gpu_weights("A", SLOTS, jobs, busy, (0, SECOND))[0] == {1: 0.75, 2: 0.25}
    assert gpu_weights("A", SLOTS, jobs, NodeActivity(), (0, SECOND))[0] == {1: 0.5, 2: 0.5}
    slices = [GpuSlot("m1", "A", 3 / 7), GpuSlot("m2", "A", 2 / 7)]
    held = [JobPresence(1, 0, None, ("m1",))]
    weights, _ = gpu_weights("A", slices, held, NodeActivity(), (0, SECOND))
    assert weights == {1: pytest.approx(3 / 7), UNALLOCATED: pytest.approx(4 / 7)}


def test_a_change_of_hands_without_a_reading_is_divided_by_time_and_flagged() -> None:
    jobs = [JobPresence(1, 0, 4 * SECOND, ("A",)), JobPresence(2, 6 * SECOND, None, ("A",))]
    weights, divided = gpu_weights("A", SLOTS, jobs, NodeActivity(), (0, 10 * SECOND))
    assert divided
    assert weights == pytest.approx({1: 0.4, 2: 0.4, UNALLOCATED: 0.2})


def test_cpu_energy_counts_idle_cores_of_their_holder() -> None:
    now = NodeActivity(cpus=8, job_cpu_seconds={1: 5.0}, busy_seconds=7.0)
    weights = cpu_weights([JobPresence(1, 0, None, (), cpus=4)], now, (0, 10 * SECOND))
    assert weights == {
        1: 5 + IDLE_WEIGHT * 35,
        SYSTEM: 2.0,
        UNALLOCATED: pytest.approx(IDLE_WEIGHT * (80 - 7 - 35)),
    }


def test_a_lone_light_job_does_not_pay_for_the_whole_node() -> None:
    job = JobPresence(1, 0, None, ("A",), cpus=1, memory_bytes=10)
    now = NodeActivity(cpus=64, memory_bytes=1000, job_cpu_seconds={1: 0.5}, busy_seconds=0.6)
    cpu = cpu_weights([job], now, (0, 10 * SECOND))
    assert cpu[1] / sum(cpu.values()) < 0.05
    memory = memory_weights([job], now, (0, 10 * SECOND))
    assert memory[1] / sum(memory.values()) == pytest.approx(0.01)
    rest = rest_weights([job], SLOTS, now, (0, 10 * SECOND))
    assert rest == {1: 0.5, UNALLOCATED: 0.5}  # it keeps half of the GPUs from others


def test_uncertainty_grows_with_estimates_and_short_times() -> None:
    accountant = EnergyAccountant()
    accountant.ledger.charge("gpu", 10**9, {1: 1.0})
    accountant.held_seconds[1] = 3600
    steady = accountant.uncertainty(1)
    assert steady == pytest.approx(0.05, rel=0.01)
    accountant.held_seconds[1] = 1
    assert accountant.uncertainty(1) > steady
    accountant.ledger.charge("gpu", 10**9, {1: 1.0}, estimated=True)
    assert accountant.uncertainty(1) > 0.1
