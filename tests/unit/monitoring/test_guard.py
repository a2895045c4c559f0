"""A collector that fails or hangs takes nothing with it."""

import threading
import time

from carme.errors import UnavailableError
from carme_monitoring.guard import Guards
from carme_monitoring.metrics import Samples


def fail() -> None:
    raise UnavailableError("gone")


def test_failures_are_counted_by_reason() -> None:
    guards, out = Guards(), Samples()
    assert guards.run("good", lambda: 5) == 5
    assert guards.run("away", fail) is None
    assert guards.run("bug", lambda: 1 // 0) is None
    guards.add_samples(out)
    assert out.value("carme_collector_success", "good") == 1
    assert out.value("carme_collector_success", "away") == 0
    assert out.value("carme_collector_failures_total", "away", "unavailable") == 1
    assert out.value("carme_collector_failures_total", "bug", "error") == 1
    assert "ZeroDivisionError" in guards.errors()["bug"]


def test_every_run_of_a_collection_counts() -> None:
    """Collectors of one device share a name: one that works does not hide another that fails."""
    guards, out = Guards(), Samples()
    guards.begin()
    guards.run("gpu", fail)
    guards.run("gpu", lambda: time.sleep(0.02))
    guards.compute("gpu", lambda: 1 // 0)
    guards.add_samples(out)
    assert out.value("carme_collector_success", "gpu") == 0
    assert (out.value("carme_collector_duration_seconds", "gpu") or 0) >= 0.02
    assert guards.errors() == {"gpu": "UnavailableError: gone"}
    guards.begin()
    guards.run("gpu", lambda: 1)
    guards.add_samples(out)
    assert out.value("carme_collector_success", "gpu") == 1
    assert guards.errors() == {}


def test_a_hanging_collector_is_given_up_until_it_comes_back() -> None:
    guards, release = Guards({"gpu": 0.1}), threading.Event()
    began = time.monotonic()
    assert guards.run("gpu", release.wait) is None
    assert guards.run("gpu", lambda: 1) is None
    assert guards.run("rapl", lambda: 2) == 2
    assert time.monotonic() - began < 1
    assert guards.failures.values[("gpu", "timeout")] == 2
    release.set()
    time.sleep(0.05)
    assert guards.run("gpu", lambda: 3) == 3
