"""Coefficients come back from steps that were made with them."""

import pytest

from carme import library
from carme.errors import InputError
from carme.predict.coefficients import Coefficients
from carme.predict.fit import fit, step_phases
from carme.predict.measurements import TimedStep, parse_steps
from carme.predict.prediction import predict
from carme.simulator import Synchronous, simulate

TRUE = Coefficients(compute=1.7, memory=0.6, network=2.5, overhead_seconds=0.004)
WORKLOAD = library.workload("alexnet")
CLUSTER = library.cluster_of("4xcpu-core")
PLAN = Synchronous(overlap=False)


def run(batch, gpus, true):
    workload, cluster = true.apply(WORKLOAD, CLUSTER)
    result = simulate(
        workload, cluster, Synchronous(gpus=gpus, batch=batch, overlap=False, epochs=1)
    )
    return result, {k: v for k, v in step_phases(result).items() if k != "wait"}


def steps(batch, gpus, phases=True, watts=None, true=TRUE, alone=False):
    result, timed_phases = run(batch, gpus, true)
    one = run(batch // gpus, 1, true)[1] if alone else {}
    one.pop("communication", None)
    return [
        TimedStep(batch=batch, gpus=gpus, seconds=result.step_seconds * (1 + 0.01 * (i % 3 - 1)),
                    phases=timed_phases if phases else {}, alone=one, gpu_watts=watts)
        for i in range(20)
    ]  # fmt: skip


def test_phases_at_one_point_give_all_coefficients_back():
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2))
    coefficients = known.coefficients
    assert coefficients.compute == pytest.approx(TRUE.compute, rel=0.05)
    assert coefficients.memory == pytest.approx(TRUE.memory, rel=0.1)
    assert coefficients.network == pytest.approx(TRUE.network, rel=0.05)
    assert known.provenance.source == "fit"
    assert known.provenance.unseen == ("shared_compute", "shared_update", "power")


def test_another_batch_and_worker_count_is_predicted():
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2))
    other = steps(256, 4)[0].seconds
    prediction = predict(WORKLOAD, CLUSTER, Synchronous(gpus=4, batch=256, overlap=False), known)
    assert prediction.step_time.value == pytest.approx(other, rel=0.05)
    assert prediction.step_time.low < other < prediction.step_time.high


def test_one_worker_says_nothing_of_the_network():
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 1))
    assert "network" in known.provenance.unseen
    assert known.coefficients.network == 1
    prediction = predict(WORKLOAD, CLUSTER, Synchronous(gpus=2, overlap=False), known)
    assert "communication was not measured" in " ".join(prediction.notes)


def test_what_a_worker_takes_alone_tells_how_workers_slow_each_other():
    true = TRUE.model_copy(update={"shared_compute": 0.2, "shared_update": 0.8})
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2, true=true, alone=True))
    assert known.coefficients.shared_compute == pytest.approx(0.2, abs=0.02)
    assert known.coefficients.shared_update == pytest.approx(0.8, abs=0.05)
    for batch, gpus in ((16, 1), (256, 1), (256, 4)):
        prediction = predict(
            WORKLOAD, CLUSTER, Synchronous(gpus=gpus, batch=batch, overlap=False), known
        )
        measured = run(batch, gpus, true)[0].step_seconds
        assert prediction.step_time.value == pytest.approx(measured, rel=0.03)
        assert not prediction.notes
    without = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2, true=true))
    assert without.coefficients.shared_compute == 0
    prediction = predict(WORKLOAD, CLUSTER, Synchronous(gpus=1, batch=256, overlap=False), without)
    assert "slow each other was not measured" in prediction.notes[0]


def test_what_disturbs_now_one_phase_and_now_another_is_no_overhead():
    true = TRUE.model_copy(update={"overhead_seconds": 0.0})
    quiet = steps(64, 2, true=true)
    names = sorted(quiet[0].phases)
    disturbed = []
    for i, step in enumerate(quiet):
        hit = names[i % len(names)]  # each phase in a third of the steps, so no median sees it
        longer = step.phases | {hit: step.phases[hit] + 0.5 * step.seconds}
        total = sum(longer.values())
        disturbed.append(step.model_copy(update={"phases": longer, "seconds": total}))
    coefficients = fit(WORKLOAD, CLUSTER, PLAN, disturbed).coefficients
    assert coefficients.overhead_seconds < 0.01 * quiet[0].seconds


def test_what_the_simulator_gets_wrong_in_a_phase_is_no_overhead():
    slow_when_small = []
    for step in steps(32, 2):
        extra = 0.2 * step.phases["compute"]
        phases = step.phases | {"compute": step.phases["compute"] + extra}
        slow_when_small.append(
            step.model_copy(update={"phases": phases, "seconds": step.seconds + extra})
        )
    known = fit(WORKLOAD, CLUSTER, PLAN, [*slow_when_small, *steps(256, 2)])
    assert known.coefficients.overhead_seconds == pytest.approx(TRUE.overhead_seconds, rel=0.1)


def test_steps_that_each_spent_their_time_in_another_phase_count_as_a_whole():
    names = ("compute", "communication", "update")
    whole = run(64, 2, TRUE)[0].step_seconds
    tracked = [
        TimedStep(batch=64, gpus=2, seconds=whole, phases=dict.fromkeys(names, 0.0) | {n: whole})
        for n in names
    ]
    known = fit(WORKLOAD, CLUSTER, PLAN, tracked)
    prediction = predict(WORKLOAD, CLUSTER, Synchronous(gpus=2, batch=64, overlap=False), known)
    assert prediction.step_time.value == pytest.approx(whole, rel=0.02)


def test_the_interval_grows_with_the_distance():
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2))

    def width(batch, gpus):
        time = predict(WORKLOAD, CLUSTER, Synchronous(gpus=gpus, batch=batch), known).time
        return time.high / time.low

    assert width(64, 2) < width(128, 2) < width(512, 2) < width(1024, 4)


def test_the_distance_is_to_what_was_measured_together():
    """One worker with 32 samples and four with 512 say little about one with 512."""
    known = fit(WORKLOAD, CLUSTER, PLAN, [*steps(32, 1), *steps(512, 4)])
    assert known.provenance.points == ((32, 1), (512, 4))

    def width(batch, gpus, known=known):
        time = predict(WORKLOAD, CLUSTER, Synchronous(gpus=gpus, batch=batch), known).time
        return time.high / time.low

    assert width(32, 1) == pytest.approx(width(512, 4))
    assert width(512, 1) > 1.1 * width(32, 1)
    provenance = known.provenance.model_copy(update={"points": ()})
    old = known.model_copy(update={"provenance": provenance})
    assert width(512, 1, old) == pytest.approx(width(32, 1))


def test_watts_are_fitted_where_they_were_measured():
    known = fit(WORKLOAD, CLUSTER, PLAN, steps(64, 2, watts=3.0))
    prediction = predict(WORKLOAD, CLUSTER, Synchronous(gpus=2, batch=64, overlap=False), known)
    assert prediction.average_gpu_power.value == pytest.approx(3.0, rel=0.02)


def test_steps_on_more_workers_than_there_are_are_refused():
    with pytest.raises(InputError, match="5 workers"):
        fit(WORKLOAD, library.cluster_of("1xt4"), PLAN,
            [TimedStep(batch=50, gpus=5, seconds=1)] * 3)  # fmt: skip


def test_steps_that_nothing_explains_are_refused():
    with pytest.raises(InputError, match="no coefficients"):
        fit(WORKLOAD, CLUSTER, PLAN, [TimedStep(batch=64, gpus=2, seconds=1e-6)] * 3)


CSV = "batch,gpus,seconds,compute,alone_update\n64,2,0.5,0.4,0.1\n64,2,0.5,,\n64,2,0.6,0.5,\n"


def test_steps_are_read_from_csv_and_json():
    steps = parse_steps(CSV, "x.csv")
    assert [step.phases for step in steps] == [{"compute": 0.4}, {}, {"compute": 0.5}]
    assert [step.alone for step in steps] == [{"update": 0.1}, {}, {}]
    text = '[{"batch": 64, "seconds": 1}, {"batch": 64, "seconds": 1}, {"batch": 64, "seconds": 2}]'
    assert len(parse_steps(text, "x.json")) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "missing"),
        ("batch,seconds,colour\n1,1,red", "colour"),
        ("batch,seconds\n64,0.5", "at least 3"),
        ("batch,seconds\n64,fast\n64,1\n64,1", "x: steps.0.seconds"),
        ("batch,seconds\n64,-1\n64,1\n64,1", "greater than 0"),
        ("batch,seconds,compute\n64,1,2\n64,1,1\n64,1,1", "longer than the step"),
        ("[1", "JSON"),
        ('{"steps": 5}', "steps"),
        ('[{"batch": 1e400, "seconds": 1}]', "steps.0.batch"),
    ],
)
def test_what_cannot_be_steps_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        parse_steps(text, "x")
