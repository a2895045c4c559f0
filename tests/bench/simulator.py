"""`./dev bench simulator [--json]`: the simulator's speed, one thread, against its targets."""

import argparse
import json
import os
import sys
from time import perf_counter

# Before NumPy starts its threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

# ruff: noqa: E402
import numpy as np
import simpy

from carme import library
from carme.library.suite_runner import Suite, run_suite
from carme.simulator.analysis.search import ExhaustiveSearch
from carme.simulator.costs.collectives import send_seconds
from carme.simulator.costs.memory import model_bytes
from carme.simulator.costs.step import plan_step
from carme.simulator.events import compiled_queues, models
from carme.simulator.events.engine import Simulation
from carme.simulator.events.operations import Compute, Transfer
from carme.simulator.papers import merpsys
from carme.simulator.plans import Synchronous, averaging_schedule, package_sizes
from carme.simulator.runs import simulate
from carme.simulator.runs.queued import run_averaging
from carme.simulator.workload import Workload

WORKERS, ROUNDS, TRANSFER = 64, 500, 0.015
TARGETS = {
    "ratio": (100, "at least"),
    "general_ratio": (3, "at least"),
    "merpsys_16_points_seconds": (1, "under"),
    "sync_worker_steps_per_second": (20e6, "at least"),
    "sweep_1000_points_seconds": (2, "under"),
    "gpt_3072_gpus_seconds": (1, "under"),
    "pipeline_1t_3072_gpus_ms": (1, "under"),
    "fsdp_70b_512_gpus_ms": (1, "under"),
}


def timed(function, *arguments):
    begin = perf_counter()
    result = function(*arguments)
    return perf_counter() - begin, result


def in_simpy(compute, transfer):
    """64 workers that compute, then use one first-come link, as SimPy's users write it."""
    env = simpy.Environment()
    link = simpy.Resource(env)
    trace = []

    def worker(index, seconds):
        for duration in seconds:
            start = env.now
            yield env.timeout(duration)
            trace.append((index, "compute", start, env.now))
            with link.request() as request:
                yield request
                start = env.now
                yield env.timeout(transfer)
            trace.append((index, "transfer", start, env.now))

    for index, seconds in enumerate(compute):
        env.process(worker(index, seconds))
    env.run()
    return trace


def in_engine(compute, transfer):
    """The same as a user of the general engine writes it, energy and trace on."""
    simulation = Simulation()
    link = simulation.link("link", bandwidth=1.0, idle_watts=2.0, busy_watts=5.0)

    def worker(gpu, seconds):
        for duration in seconds:
            yield Compute(gpu, duration)
            yield Transfer(link, transfer)

    for index, seconds in enumerate(compute):
        gpu = simulation.device(f"gpu {index}", idle_watts=40.0, busy_watts=250.0)
        simulation.process(worker(gpu, seconds), f"{index}")
    return simulation.run()


def same_trace(simpy_trace, report, begin, end):
    """SimPy's, the general engine's and the fast path's operations, worker by worker."""
    engine_trace = [(int(r.process), r.label, r.start, r.end) for r in report.records()]
    simpy_trace, engine_trace = (
        sorted(trace, key=lambda r: (r[0], r[2])) for trace in (simpy_trace, engine_trace)
    )
    np.testing.assert_allclose(
        [r[2:] for r in simpy_trace], [r[2:] for r in engine_trace], atol=1e-9
    )
    moved = [r for r in simpy_trace if r[1] == "transfer"]
    fast = np.column_stack([begin.ravel(), end.ravel()])
    np.testing.assert_allclose([r[2:] for r in moved], fast, atol=1e-9)
    assert report.joules() > 0


def shared_link():
    """SimPy, general engine and fast path in turns, the best of each: other work on the machine
    slows all alike, and the best are the least disturbed."""
    compute = np.random.default_rng(7).lognormal(0, 0.1, (WORKERS, ROUNDS))
    rows = compute.tolist()
    compiled_queues.shared_link(compute, TRANSFER)  # compiled, or loaded from the cache
    simpy_times, engine_times, fast_times = [], [], []
    for _ in range(7):
        seconds, simpy_trace = timed(in_simpy, rows, TRANSFER)
        simpy_times.append(seconds)
        seconds, report = timed(in_engine, rows, TRANSFER)
        engine_times.append(seconds)
        fast_times += [timed(compiled_queues.shared_link, compute, TRANSFER)[0] for _ in range(20)]
    same_trace(simpy_trace, report, *compiled_queues.shared_link(compute, TRANSFER))
    operations = 2 * WORKERS * ROUNDS
    simpy_rate = operations / min(simpy_times)
    return {
        "events_per_second": operations / min(fast_times),
        "simpy_events_per_second": simpy_rate,
        "ratio": operations / min(fast_times) / simpy_rate,
        "general_ratio": min(simpy_times) / min(engine_times),
    }


def merpsys_points():
    """All operations of the 16 points in the general engine, and the fast path's answers."""
    workload, cluster = library.workload("kaldi-lstm"), library.cluster("merpsys")
    plans = [*merpsys.plans(0.0), *merpsys.plans(merpsys.IMBALANCE)]
    packages = workload.dataset.samples
    seconds = workload.measured[0].seconds

    def general():
        times = []
        for plan in plans:
            size = model_bytes(workload, plan)
            near_seconds, far_seconds = (
                send_seconds(size, cluster.node, crosses) for crosses in (False, True)
            )
            report = models.averaging(
                averaging_schedule(packages, plan.first_slaves, plan.gpus).tolist(),
                (seconds * package_sizes(plan, packages)).tolist(),
                cluster.node.gpus,
                near_seconds,
                far_seconds,
                idle_watts=18.0,
                busy_watts=225.0,
            )
            times.append(report.seconds)
        return times

    wall_seconds, run_seconds = min((timed(general) for _ in range(3)), key=lambda pair: pair[0])
    fast = [run_averaging(workload, cluster, plan).seconds for plan in plans]
    np.testing.assert_allclose(run_seconds, fast, rtol=1e-9)
    return wall_seconds


def sync_rate():
    """Whole simulations of 1,024 workers, 5,000 jittered steps each."""
    cluster = library.cluster_of("1024xV100")
    plan = Synchronous(gpus=1024, batch=32768, jitter=0.1, sample_steps=5000, epochs=200)
    workload = library.workload("resnet-50")
    seconds = min(timed(simulate, workload, cluster, plan)[0] for _ in range(3))
    return plan.sample_steps * plan.gpus / seconds


def sweep():
    suite = Suite(
        library.workload("resnet-50"),
        library.cluster_of("64xV100"),
        "synchronous",
        {"gpus": 8, "epochs": 90},
    )
    ranges = {
        "gpus": [8, 16, 32, 64],
        "batch": [512 + 64 * i for i in range(25)],
        "power_cap_watts": [165 + 15 * i for i in range(10)],
    }
    seconds, outcomes = timed(run_suite, suite, ExhaustiveSearch(ranges))
    assert len(outcomes) == 1000
    assert sum(not o.error for o in outcomes) > 800
    return seconds


def gpt():
    cluster = library.cluster_of("3072xA100-80gb")
    plan = Synchronous(
        gpus=3072, tensor=8, pipeline=8, micro_batch=1, batch=1536, recompute="full",
        jitter=0.05, sample_steps=1000,
    )  # fmt: skip
    workload = library.workload("gpt-175b")
    return min(timed(simulate, workload, cluster, plan)[0] for _ in range(3))


def median_step_ms(workload, cluster, plans):
    """Milliseconds of one step, the median over different plans; the library is warm."""
    plan_step(workload, cluster, plans[0])
    return 1000 * float(np.median([timed(plan_step, workload, cluster, p)[0] for p in plans]))


def pipeline_1t():
    """GPT with 10^12 parameters on 3,072 GPUs: 64 stages of 8 GPUs, 6 copies."""
    workload = Workload(
        name="gpt-1t",
        transformer={
            "hidden": 25600, "layers": 128, "heads": 160, "sequence": 2048, "vocabulary": 51200,
        },
        dataset={"samples": 10**6}, optimizer="adam", precision="fp16", framework="megatron",
    )  # fmt: skip
    plans = [
        Synchronous(
            gpus=3072, tensor=8, pipeline=64, batch=3072 + 6 * i, micro_batch=1, recompute="full",
        )
        for i in range(100)
    ]  # fmt: skip
    return median_step_ms(workload, library.cluster_of("3072xA100-80gb"), plans)


def fsdp_70b():
    """Llama 3 70B with FSDP on 512 GPUs."""
    workload = Workload(
        name="llama-70b",
        transformer={
            "hidden": 8192, "layers": 80, "heads": 64, "key_value_heads": 8, "sequence": 8192,
            "vocabulary": 128256, "feed_forward": 28672, "position_encoding": "rotary",
            "norm": "rms", "gated": True, "biases": False, "tied": False, "dropout": False,
            "attention": "flash-2",
        },
        dataset={"samples": 10**6}, optimizer="adam", precision="bf16",
    )  # fmt: skip
    plans = [
        Synchronous(
            gpus=512, batch=512 * (1 + i), micro_batch=1 + i % 4, recompute="full",
            sharding="weights", shard_group=(None, 8, 64)[i % 3],
        )
        for i in range(100)
    ]  # fmt: skip
    return median_step_ms(workload, library.cluster_of("512xH100"), plans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    figures = {
        **shared_link(),
        "merpsys_16_points_seconds": merpsys_points(),
        "sync_worker_steps_per_second": sync_rate(),
        "sweep_1000_points_seconds": sweep(),
        "gpt_3072_gpus_seconds": gpt(),
        "pipeline_1t_3072_gpus_ms": pipeline_1t(),
        "fsdp_70b_512_gpus_ms": fsdp_70b(),
    }
    if as_json:
        print(json.dumps(figures))
        return
    missed = False
    for name, value in figures.items():
        target, comparison = TARGETS.get(name, (None, ""))
        reached = target is None or (value < target if comparison == "under" else value >= target)
        missed |= not reached
        target_text = f"{comparison} {target:g}{'' if reached else '  MISSED'}" if target else ""
        print(f"{name:32} {value:14.4g}  {target_text}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
