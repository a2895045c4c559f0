"""Counters of users and accounts that live longer than jobs."""

from carme_monitoring.accounting.counters import UserCounters
from carme_monitoring.metrics import Samples

from .conftest import restarted

SECOND = 10**9
ANN = ("ann", "phys", "gpu")
GPU = ("energy_joules", "gpu")
HOLD = 30


def shown(owners: UserCounters, seconds: float) -> dict[tuple[str, ...], float]:
    out = Samples()
    owners.add_samples(out, round(seconds * SECOND))
    return out.families.get("carme_owner_energy_joules_total", {})


def test_jobs_of_an_owner_add_up_and_outlive_them() -> None:
    owners = UserCounters(HOLD)
    owners.count([(1, ANN, {GPU: 100.0}), (2, ANN, {GPU: 10.0})], 0)
    owners.count([(1, ANN, {GPU: 150.0}), (2, ANN, {GPU: 10.0})], 15 * SECOND)
    owners.forget(1)
    owners.forget(2)
    assert shown(owners, 60) == {(*ANN, "gpu"): 160}
    assert owners.node == {GPU: 160}
    owners.count([(3, ANN, {GPU: 5.0})], 70 * SECOND)
    assert shown(owners, 70) == {(*ANN, "gpu"): 165}


def test_a_new_series_is_zero_until_it_must_have_been_read() -> None:
    owners = UserCounters(HOLD)
    owners.count([(1, ANN, {GPU: 140.0})], 0)
    assert shown(owners, 0) == shown(owners, HOLD - 1) == {(*ANN, "gpu"): 0}
    assert shown(owners, HOLD) == {(*ANN, "gpu"): 140}


def test_figures_never_fall() -> None:
    owners = UserCounters(0)
    owners.count([(1, ANN, {GPU: 100.0})], 0)
    owners.count([(1, ANN, {GPU: 20.0})], SECOND)  # requeued: its account began anew
    owners.count([(1, ANN, {GPU: 25.0})], 2 * SECOND)
    assert shown(owners, 3) == {(*ANN, "gpu"): 105}


def test_an_owner_who_stays_away_for_a_day_is_forgotten() -> None:
    owners, day = UserCounters(0), 24 * 3600
    owners.count([(1, ANN, {GPU: 100.0})], 0)
    owners.count([], (day - 1) * SECOND)
    assert shown(owners, day)
    owners.count([], (day + 1) * SECOND)
    assert not shown(owners, day)


def test_a_restart_and_a_reboot_lose_nothing() -> None:
    before = UserCounters(HOLD)
    before.count([(1, ANN, {GPU: 100.0})], 1000 * SECOND)
    after = restarted(before)
    after.count([(1, ANN, {GPU: 130.0})], 1010 * SECOND)
    assert shown(after, 1040) == {(*ANN, "gpu"): 130}
    rebooted = restarted(after, is_same_boot=False)
    rebooted.count([(1, ANN, {GPU: 7.0})], 5 * SECOND)
    assert shown(rebooted, 5) == {(*ANN, "gpu"): 137}
    assert rebooted.node == {GPU: 137}
