"""Jitter: its moments, its memory, and the workers of measured jobs."""

import csv

import numpy as np
import pytest
from pydantic import ValidationError

from carme import library
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate
from carme.simulator.runs.jitter import Jitter

DEFAULT = Jitter.of(Synchronous(gpus=10, jitter=0.07))


def autocorrelation(times, lag=1):
    """Of each worker's own times, relative to the mean of all workers in that step."""
    own = np.log(times) - np.log(times).mean(axis=1, keepdims=True)
    own = own - own.mean(axis=0)
    return float((own[lag:] * own[:-lag]).mean() / (own * own).mean())


def slowest_share(times):
    """Share of the steps in which the worker that is slowest most often is slowest."""
    return np.bincount(times.argmax(axis=1)).max() / len(times)


def same_slowest(times):
    slowest = times.argmax(axis=1)
    return float((slowest[1:] == slowest[:-1]).mean())


def draws(jitter, runs=60, steps=300, workers=10):
    return [jitter.factors(steps, workers, np.random.default_rng(seed)) for seed in range(runs)]


def test_mean_and_spread_are_those_asked_for():
    for jitter in (DEFAULT, Jitter(cv=0.07), DEFAULT._replace(persistent=0.0, drift=1.0)):
        factors = np.concatenate(draws(jitter))
        assert factors.mean() == pytest.approx(1, abs=0.003)
        assert factors.std() == pytest.approx(0.07, rel=0.05)


def test_the_drift_has_the_correlations_asked_for():
    jitter = Jitter(cv=0.1, persistent=0.25, drift=0.6, correlation=0.9)
    (factors,) = draws(jitter, runs=1, steps=20_000, workers=50)
    for lag in (1, 2, 5):
        assert autocorrelation(factors, lag) == pytest.approx(0.8 * 0.9**lag, abs=0.02)
    levels = np.log(factors).mean(axis=0)
    assert levels.var(ddof=1) / np.log(factors).var() == pytest.approx(0.25, abs=0.12)


def test_independent_jitter_is_independent():
    times = draws(Jitter(cv=0.1), runs=1, steps=5000)[0]
    assert abs(autocorrelation(times)) < 0.02
    assert slowest_share(times) < 0.13


def test_a_seed_gives_the_same_run_and_another_seed_another():
    def seconds(seed):
        plan = Synchronous(gpus=16, batch=512, jitter=0.1, seed=seed)
        return simulate(library.workload("resnet-50"), library.cluster_of("16xV100"), plan).seconds

    assert seconds(1) == seconds(1)
    assert seconds(1) != seconds(2)


def test_samples_keep_their_distribution_and_get_memory():
    samples = (0.9, 0.9, 0.9, 1.3)
    jitter = DEFAULT._replace(samples=samples)
    factors = np.concatenate(draws(jitter))
    assert set(np.round(np.unique(factors), 6)) == {0.9, 1.3}
    assert (factors > 1).mean() == pytest.approx(0.25, abs=0.02)
    assert autocorrelation(draws(jitter, runs=1, steps=5000)[0]) > 0.3


def test_shares_above_one_are_refused():
    with pytest.raises(ValidationError, match="more than 1 together"):
        Synchronous(gpus=1, jitter_persistent=0.7, jitter_drift=0.4)


def measured_times(folder, job):
    text = (folder / "stragglers" / f"job_{job}.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    times = {(float(r["time"]), int(r["worker"])): float(r["batch_time_norm"]) for r in rows}
    steps = sorted({step for step, _ in times})
    table = np.array([[times.get((s, w), np.nan) for w in range(10)] for s in steps])
    return table[~np.isnan(table).any(axis=1)]


def test_workers_stay_slow_as_in_measured_jobs(data):
    measured = [measured_times(data, job) for job in (1, 2, 3, 4)]
    simulated = draws(DEFAULT)
    for figure in (autocorrelation, slowest_share, same_slowest):
        lowest, *_, highest = sorted(figure(times) for times in measured)
        assert lowest <= np.median([figure(times) for times in simulated]) <= highest
        independent = np.median([figure(times) for times in draws(Jitter(cv=0.07))])
        assert independent < 0.5 * lowest
