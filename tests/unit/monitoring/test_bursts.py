"""Bursts: two clusters, and the lengths between them."""

import pytest

from carme_monitoring.bursts import find, threshold
from carme_monitoring.sampler import PROFILE_HZ, Sampler


def test_two_means() -> None:
    assert threshold([0, 0.1, 0.05, 9, 10, 9.5]) == pytest.approx(4.55)
    assert threshold([3, 3, 3]) is None
    assert threshold([]) is None


def test_a_square_wave() -> None:
    wave = ([0.0] * 6 + [1.0] * 4) * 20
    bursts = find(wave, 0.05, is_level=False)
    assert bursts
    assert bursts.burst_seconds == pytest.approx(0.2)
    assert bursts.pause_seconds == pytest.approx(0.3)
    assert bursts.amount == pytest.approx(0.2)  # a GPU for 0.2 s
    level = find([100.0 if value else 20.0 for value in wave], 0.05, is_level=True)
    assert level
    assert level.amount == 100


def test_one_long_burst_still_counts() -> None:
    bursts = find([0.0] * 10 + [1.0] * 30, 0.05, is_level=False)
    assert bursts
    assert (bursts.burst_seconds, bursts.pause_seconds) == (1.5, 0.5)


def test_the_sampler_makes_twelve_figures() -> None:
    now = [0.0]
    state = {"util": 0.0, "sent": 0, "received": 0}
    sampler = Sampler(
        lambda: {"A": (state["util"], 0, 1000 if state["util"] else 10)},
        lambda: (int(state["sent"]), int(state["received"])),
        now=lambda: now[0],
    )
    sampler.follow({7: ["A"]})
    for step in range(PROFILE_HZ * 20):
        busy = step % 40 < 10
        state["util"] = 1.0 if busy else 0.0
        state["sent"] += 5000 if busy else 0
        state["received"] += 100 if busy else 1
        now[0] += 1 / PROFILE_HZ
        sampler.step()
    figures = sampler.figures()[7]
    assert set(figures) == {"gpu", "gpu_memory", "send", "receive"}
    assert figures["gpu"].burst_seconds == pytest.approx(0.5)
    assert figures["gpu"].pause_seconds == pytest.approx(1.5)
    assert figures["gpu"].amount == pytest.approx(0.5)
    assert figures["gpu_memory"].amount == 1000
    assert figures["send"].amount == pytest.approx(50_000, rel=0.02)
    assert figures["receive"].burst_seconds == pytest.approx(0.5, rel=0.02)
    sampler.follow({})
    assert sampler.figures() == {}


def test_idle_time_and_energy_are_of_idle_moments_only() -> None:
    now, looks = [0.0], iter([(0.0, 0), (0.0, 100), (1.0, 500), (0.005, 600), (None, 700)])
    sampler = Sampler(lambda: {"A": (*next(looks), 0)}, lambda: (0, 0), now=lambda: now[0])
    for _ in range(4):
        sampler.step()
        now[0] += 1
    seen = sampler.drain()["A"]
    assert (seen.seconds, seen.idle_seconds, seen.idle_mj) == (3, 2, 200)
    assert seen.utilisation == pytest.approx(1.005 / 3)
