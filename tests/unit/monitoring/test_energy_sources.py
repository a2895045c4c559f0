"""Counters that wrap, restart or show nonsense, and gauges with gaps."""

import pytest

from carme_monitoring.energy.accountant import MAX_PACKAGE_WATTS, CounterSource, GaugeSource

SECOND = 10**9


def test_counter_wraps_and_resets() -> None:
    wrapping = CounterSource(100, range_uj=1000 * 10**6)
    assert wrapping.advance(990 * 10**6, 0).outcome == "first"
    gain = wrapping.advance(10 * 10**6, 10 * SECOND)
    assert (gain.uj, gain.outcome) == (20 * 10**6, "wrapped")
    plain = CounterSource(100)
    plain.advance(900 * 10**6, 0)
    gain = plain.advance(3 * 10**6, 10 * SECOND)
    assert (gain.uj, gain.outcome) == (3 * 10**6, "reset")
    assert plain.advance(3 * 10**6, 9 * SECOND).outcome == "same"


RAPL_RANGES_UJ = (65_532_610_987, 262_143_328_850)


def _zone(range_uj: int, value_uj: int, watts: int | None) -> CounterSource:
    """A RAPL counter that was read at second 0, after 15 s at `watts` unless they are None."""
    zone = CounterSource(MAX_PACKAGE_WATTS, range_uj)
    if watts is not None:
        zone.advance(value_uj - watts * 15 * 10**6, 0)
    zone.advance(value_uj, 15 * SECOND)
    return zone


@pytest.mark.parametrize("watts", [None, 30, 100, 250])
@pytest.mark.parametrize(
    ("range_uj", "before_joules", "seconds"),
    [
        *((RAPL_RANGES_UJ[1], 200_000, seconds) for seconds in (15, 21, 30, 45, 60, 63, 90, 120)),
        *((RAPL_RANGES_UJ[0], 40_000, seconds) for seconds in (15, 30, 45)),
        (RAPL_RANGES_UJ[1], 100_000, 300),
    ],
)
def test_a_reset_of_rapl_is_no_wrap(
    range_uj: int, before_joules: int, seconds: int, watts: int | None
) -> None:
    """More than a processor draws, or in a long gap more than twice as much as usual."""
    zone = _zone(range_uj, before_joules * 10**6, watts)
    gain = zone.advance(10**6, (15 + seconds) * SECOND)
    assert (gain.uj, gain.outcome) == (10**6, "reset")


@pytest.mark.parametrize("seconds", [15, 30, 60, 63, 120, 300])
@pytest.mark.parametrize("watts", [20, 100, 250, 500, 700])
@pytest.mark.parametrize("range_uj", RAPL_RANGES_UJ)
def test_a_reset_that_looks_like_a_wrap_invents_little(
    range_uj: int, watts: int, seconds: int
) -> None:
    most_uj = (750 if seconds <= 30 else 2 * watts) * seconds * 10**6
    for before_uj in range(20_000 * 10**6, range_uj, range_uj // 50):
        gain = _zone(range_uj, before_uj, watts).advance(10**6, (15 + seconds) * SECOND)
        assert gain.uj <= 10**6 + most_uj + 5 * 10**6


@pytest.mark.parametrize("seconds", [15, 30, 60, 120, 300])
@pytest.mark.parametrize("watts", [20, 100, 200, 350, 500, 700])
@pytest.mark.parametrize("range_uj", RAPL_RANGES_UJ)
def test_a_wrap_of_rapl_loses_nothing(range_uj: int, watts: int, seconds: int) -> None:
    """Wherever in the interval it happens, also when the power has doubled meanwhile."""
    used_uj = watts * seconds * 10**6
    if used_uj >= range_uj:
        pytest.skip("a whole turn in one interval cannot be seen")
    for part in range(1, 20):
        for watts_before in (watts, watts // 2):
            before_uj = range_uj - used_uj * part // 20
            if before_uj < watts_before * 15 * 10**6:
                continue
            zone = _zone(range_uj, before_uj, watts_before)
            gain = zone.advance(before_uj + used_uj - range_uj, (15 + seconds) * SECOND)
            assert (gain.uj, gain.outcome) == (used_uj, "wrapped")


@pytest.mark.parametrize("watts", [None, 20, 40])
def test_a_wrap_when_a_job_has_just_begun_loses_nothing(watts: int | None) -> None:
    range_uj = RAPL_RANGES_UJ[1]
    zone = _zone(range_uj, range_uj - 6_000 * 10**6, watts)
    gain = zone.advance(1_500 * 10**6, 30 * SECOND)
    assert (gain.uj, gain.outcome) == (7_500 * 10**6, "wrapped")


def test_a_sudden_load_in_a_long_gap_counts_what_is_certain() -> None:
    range_uj = RAPL_RANGES_UJ[0]
    zone = _zone(range_uj, range_uj - 24_000 * 10**6, 40)
    gain = zone.advance(6_000 * 10**6, (15 + 120) * SECOND)
    assert (gain.uj, gain.outcome) == (6_000 * 10**6, "reset")


@pytest.mark.parametrize("missed", range(5))
@pytest.mark.parametrize("watts", [40, 250, 700])
def test_a_missed_collection_loses_no_joule(missed: int, watts: int) -> None:
    """Whether or not the counter wraps in the meantime."""
    range_uj = 65_532_610_987
    zone, start_uj, counted = CounterSource(MAX_PACKAGE_WATTS, range_uj), 64_000 * 10**6, 0
    for collection in range(0, 400, missed + 1):
        at_seconds = 15 * collection
        used_uj = watts * at_seconds * 10**6
        gain = zone.advance((start_uj + used_uj) % range_uj, at_seconds * SECOND)
        assert gain.outcome in ("first", "counted", "wrapped")
        counted += gain.uj
        assert counted == used_uj


def test_a_glitch_is_rejected_and_nothing_is_lost() -> None:
    counter = CounterSource(100)
    counter.advance(0, 0)
    assert counter.advance(10**18, SECOND).outcome == "rejected"
    gain = counter.advance(20 * 10**6, 2 * SECOND)
    assert (gain.uj, gain.outcome) == (20 * 10**6, "counted")
    for second in (3, 4, 5):
        counter.advance(10**18, second * SECOND)
    assert counter.advance(10**18 + 10**6, 6 * SECOND).uj == 10**6  # it stays: a new start


def test_a_gap_of_a_gauge_is_estimated_and_says_so() -> None:
    gauge = GaugeSource(1000, max_step_ns=60 * SECOND)
    gauge.advance(100, 0)
    assert gauge.advance(200, 10 * SECOND).uj == 1500 * 10**6
    assert gauge.advance(200, 110 * SECOND).outcome == "estimated"
    assert gauge.advance(200, 9999 * SECOND).outcome == "first"
    assert gauge.advance(-5, 10000 * SECOND).outcome == "rejected"
