"""Power caps: curves inside physical bounds, and no advice where nothing was measured."""

import pytest
from pydantic import ValidationError

from carme import library
from carme.library.suite_runner import Suite
from carme.simulator.cap_curves import CAP_CURVES, UNMEASURED, check_bounds
from carme.simulator.hardware import Power, unmeasured_cap
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate


@pytest.mark.parametrize("curve", [*CAP_CURVES.values(), UNMEASURED])
def test_every_curve_lies_between_the_physical_bounds_and_names_its_source(curve):
    check_bounds(curve.points)
    assert curve.source


def test_a_curve_outside_the_bounds_is_refused():
    watts = {"idle_watts": 50, "busy_watts": 280, "limit_watts": 300}
    with pytest.raises(ValidationError, match="physics gives"):
        Power(**watts, cap_curve=((0.0, 0.1), (0.4, 0.9), (1.0, 1.0)))
    with pytest.raises(ValidationError, match="rise to a clock of 1"):
        Power(**watts, cap_curve=((0.0, 0.1), (0.4, 0.5)))


def test_only_measured_caps_are_recommended():
    assert unmeasured_cap(library.gpu("v100-pcie"), 150.0) == ""
    assert "between 125 and 250 W only" in unmeasured_cap(library.gpu("p100-pcie"), 120.0)
    assert "not measured on h100" in unmeasured_cap(library.gpu("h100"), 500.0)
    suite = Suite(
        library.workload("resnet-50"), library.cluster_of("8xH100"), "synchronous",
        {"gpus": 8, "epochs": 1, "loader": "raw"},
    )  # fmt: skip
    assert suite.evaluate({"power_cap_watts": 500}).error.startswith("no advice for this cap")
    assert not suite.evaluate({"power_cap_watts": None}).error
    # Who asks for one cap gets its figures, and is told.
    plan = Synchronous(gpus=8, epochs=1, loader="raw", power_cap_watts=500)
    [note] = simulate(suite.workload, suite.cluster, plan).notes
    assert "are a guess" in note
