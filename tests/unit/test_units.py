import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.errors import InputError
from carme.units import (
    format_bytes,
    format_duration,
    format_joules,
    format_slurm_time,
    hours_within,
    parse_memory_bytes,
    parse_slurm_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:00", 1800),
        ("1:30:00", 5400),
        ("1-12", 129600),
        ("1-00:00:00", 86400),
        ("2-01:30", 2 * 86400 + 5400),
        ("00:00:45", 45),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
    ],
)
def test_slurm_times(text, seconds):
    assert parse_slurm_seconds(text) == seconds


@given(st.integers(0, 10**8))
def test_slurm_times_go_round(seconds):
    assert parse_slurm_seconds(format_slurm_time(seconds)) == seconds


@given(st.integers(1, 10**6))
def test_hours_within_a_limit_keep_it(minutes):
    hours = hours_within(60 * minutes)
    assert 60 * minutes - 36 < round(3600 * hours) <= 60 * minutes


@pytest.mark.parametrize("text", ["soon", "-5", "1:2:3:4", "1-"])
def test_not_a_time(text):
    with pytest.raises(InputError, match="is not a time"):
        parse_slurm_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("16G", 16 * 2**30), ("512M", 512 * 2**20), ("2 GiB", 2**31), ("1.5T", 1.5 * 2**40), ("7", 7)],
)
def test_memory(text, count):
    assert parse_memory_bytes(text) == count


@pytest.mark.parametrize("text", ["", "G", "-1G", "16X", "1e9", "$(id)"])
def test_not_memory(text):
    with pytest.raises(InputError, match="not an amount of memory"):
        parse_memory_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (8 * 2**30, "8 GiB"),
        (300 * 2**20, "300 MiB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0.4 s"),
        (59, "59 s"),
        (90, "1 min 30 s"),
        (12000, "3 h 20 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("joules", "text"), [(820, "820 J"), (12300, "12.3 kJ"), (5.04e6, "1.4 kWh")]
)
def test_energy_for_people(joules, text):
    assert format_joules(joules) == text


def test_energies_that_are_read_together_have_one_unit():
    assert format_joules(300e3, like=400e3) == "0.0833 kWh"
