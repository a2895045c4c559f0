"""The sampler: idle time, and bursts at 20 Hz."""

import pytest

from carme_monitoring.sampler import PROFILE_HZ, GpuSampler


def test_the_sampler_makes_twelve_figures() -> None:
    now = [0.0]
    state = {"util": 0.0, "sent": 0, "received": 0}
    sampler = GpuSampler(
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
    assert figures["gpu"].idle_seconds == pytest.approx(1.5)
    assert figures["gpu"].burst_amount == pytest.approx(1)
    assert figures["gpu_memory"].burst_amount == 1000
    assert figures["send"].burst_amount == pytest.approx(100_000, rel=0.02)
    assert figures["receive"].burst_seconds == pytest.approx(0.5, rel=0.02)
    sampler.follow({})
    assert sampler.figures() == {}


def test_idle_time_and_energy_are_of_idle_moments_only() -> None:
    now, looks = [0.0], iter([(0.0, 0), (0.0, 100), (1.0, 500), (0.005, 600), (None, 700)])
    sampler = GpuSampler(lambda: {"A": (*next(looks), 0)}, lambda: (0, 0), now=lambda: now[0])
    for _ in range(4):
        sampler.step()
        now[0] += 1
    seen = sampler.drain()["A"]
    assert (seen.seconds, seen.idle_seconds, seen.idle_mj) == (3, 2, 200)
    assert seen.utilisation == pytest.approx(1.005 / 3)
