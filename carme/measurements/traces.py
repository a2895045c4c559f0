"""Single experiments that others traced: GPT steps, collectives, products, caps, stragglers.

Nothing is fitted here: the figures are those of the bundled hardware files, some of which were
fitted to part of these data (their sources name them).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from carme import library
from carme.errors import MissingError
from carme.simulator.costs.collectives import all_reduce_seconds, collective_group
from carme.simulator.costs.kernels import gemm_seconds
from carme.simulator.costs.step import plan_step
from carme.simulator.hardware import Cluster
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate
from carme.simulator.runs.jitter import Jitter
from carme.simulator.transformer import Transformer
from carme.simulator.workload import Dataset, Workload

Pairs = list[tuple[float, float]]
"""Measured and simulated."""


@dataclass(frozen=True)
class Accuracy:
    """Errors of the simulator on one set of measurements."""

    what: str
    source: str
    points: int
    median_error: float
    mean_error: float
    ninth_decile: float
    bias: float
    """Median of simulated / measured."""

    @classmethod
    def of(cls, what: str, source: str, pairs: Pairs) -> Accuracy:
        measured, simulated = np.array(pairs).T
        error = np.abs(simulated / measured - 1)
        return cls(
            what=what,
            source=source,
            points=len(pairs),
            median_error=float(np.median(error)),
            mean_error=float(error.mean()),
            ninth_decile=float(np.quantile(error, 0.9)),
            bias=float(np.median(simulated / measured)),
        )


def accuracies(folder: Path) -> list[Accuracy]:
    """All comparisons that the folder has measurements for."""
    if not folder.is_dir():
        raise MissingError(f"no measurements in {folder}", "give --data FOLDER or set CARME_DATA")
    return [comparison.accuracy(folder) for comparison in COMPARISONS]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        raise MissingError(f"{path} is not there", "the folder of measurements is not complete")
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _gpt(folder: Path, name: str) -> Pairs:
    cluster = library.cluster_of("64xA100-80gb")
    pairs = []
    for row in _rows(folder / "vtrain" / f"iteration_times_{name}.csv"):
        spec = Transformer(
            hidden=int(row["hidden size"]),
            layers=int(row["# layers"]),
            heads=int(row["attention heads"]),
            sequence=int(row["sequence length"]),
            vocabulary=51200,
        )
        workload = Workload(
            name="gpt",
            transformer=spec,
            dataset=Dataset(samples=1),
            optimizer="adam",
            precision="fp16",
            framework="megatron",
        )
        plan = Synchronous(
            gpus=int(row["# GPUs"]),
            batch=int(row["global batch"]),
            micro_batch=int(row["micro batch"]),
            tensor=int(row["tensor parallelism"]),
            pipeline=int(row["pipeline parallelism"]),
            overlap=False,
            recompute="full",  # vTrain's validation sets use_checkpoint
        )
        step = plan_step(workload, cluster, plan)
        pairs.append((float(row["iteration time (ms)"]) / 1e3, step.nominal_seconds))
    return pairs


def _nccl(folder: Path) -> Pairs:
    node = library.node("dgx-a100")
    pairs = []
    for gpus in (2, 4, 8):
        group = collective_group(gpus, node)
        for row in _rows(folder / "vtrain" / f"allreduce_a100_{gpus}gpu.txt"):
            seconds = all_reduce_seconds(float(row["size(B)"]), group, node, "ring")
            pairs.append((float(row["time(ns)"]) / 1e9, seconds))
    return pairs


def _products(folder: Path, file: str, name: str) -> Pairs:
    gpu = library.gpu(name)
    flops_per_second = gpu.peak_flops["fp32"] * gpu.efficiency("fp32")
    pairs = []
    for row in _rows(folder / "deepbench" / f"gemm_fp32_{file}.csv"):
        m, n, k = (np.array([float(row[c])]) for c in "mnk")
        product_seconds = gemm_seconds(m, n, k, np.ones(1), gpu, flops_per_second)
        memory_traffic_seconds = (
            4 * (m * k + k * n + m * n) / (gpu.memory_bandwidth * gpu.bandwidth_efficiency)
        )
        seconds = float(np.maximum(product_seconds, memory_traffic_seconds)[0]) + gpu.kernel_seconds
        pairs.append((float(row["time_ms"]) / 1e3, seconds))
    return pairs


def _ring(folder: Path) -> Pairs:
    node = library.node("m40-server")
    pairs = []
    for row in _rows(folder / "deepbench" / "allreduce_m40.csv"):
        group = collective_group(int(row["gpus"]), node)
        seconds = all_reduce_seconds(4 * float(row["floats"]), group, node, "ring")
        pairs.append((float(row["mean_ms"]) / 1e3, seconds))
    return pairs


Zeus = dict[int, dict[int, tuple[float, float]]]


def _zeus(folder: Path, gpu: str) -> Zeus:
    """ResNet-50's seconds an epoch and watts, by batch and cap."""
    by_batch: Zeus = defaultdict(dict)
    for row in _rows(folder / "zeus" / f"summary_power_{gpu}.csv"):
        if row["network"] == "resnet50":
            figures = (float(row["time_per_epoch"]), float(row["average_power"]))
            by_batch[int(row["batch_size"])][int(row["power_limit"])] = figures
    return by_batch


def _resnet(gpu: str, batch: int, cap: int | None) -> tuple[float, float]:
    """Seconds an epoch and mean watts of one GPU."""
    plan = Synchronous(batch=batch, epochs=1, power_cap_watts=cap, loader="raw")
    result = simulate(library.workload("resnet-50"), library.cluster_of(f"{gpu}-pcie"), plan)
    return result.seconds, result.average_gpu_watts


def _epochs(folder: Path, gpu: str) -> Pairs:
    return [
        (caps[250][0], _resnet(gpu, batch, None)[0]) for batch, caps in _zeus(folder, gpu).items()
    ]


def _caps(folder: Path, gpu: str) -> Pairs:
    pairs = []
    for batch, caps in _zeus(folder, gpu).items():
        free = _resnet(gpu, batch, None)[0]
        for cap, (seconds, _) in caps.items():
            if cap < 250:
                pairs.append((seconds / caps[250][0], _resnet(gpu, batch, cap)[0] / free))
    return pairs


def _power(folder: Path, gpu: str) -> Pairs:
    return [
        (watts, _resnet(gpu, batch, cap)[1])
        for batch, caps in _zeus(folder, gpu).items()
        for cap, (_, watts) in caps.items()
    ]


def _bert(folder: Path) -> Pairs:
    """Placements with as many GPUs on every node; mixed ones are not described here."""
    node, bert = library.node("g4dn.12xlarge"), library.workload("bert-squad")
    pairs = []
    for row in _rows(folder / "pollux" / "bert" / "placements.csv"):
        placement = row["placement"]
        if len(set(placement)) > 1:
            continue
        kind = node.model_copy(update={"gpus": int(placement[0])})
        cluster = Cluster(name="t4", node=kind, nodes=len(placement))
        plan = Synchronous(gpus=cluster.gpus, batch=int(row["local_bsz"]) * cluster.gpus)
        pairs.append((float(row["step_time"]), plan_step(bert, cluster, plan).nominal_seconds))
    return pairs


def _node_power(folder: Path) -> Pairs:
    """The node at full work; runs on one node, where the network does not hold it up."""
    node = library.node("dgx-h100")
    full = node.gpus * node.gpu.power.busy_watts + node.busy_watts
    rows = _rows(folder / "mlperf" / "training_v4_0_power_runs.csv")
    return [(float(row["mean_node_watts"]), full) for row in rows if row["nodes"] == "1"]


def _convergence(folder: Path) -> Pairs:
    epochs: dict[int, list[float]] = defaultdict(list)
    for row in _rows(folder / "zeus" / "summary_train.csv"):
        if row["network"] == "shufflenetv2" and float(row["target_metric"]) == 0.5:
            epochs[int(row["batch_size"])].append(float(row["target_epoch"]))
    curve = library.workload("shufflenet-v2").convergence
    if curve is None:
        return []
    # Below 16 samples the learning rate, not the batch, sets the epochs.
    return [(float(np.mean(e)), curve.epochs_for(b)) for b, e in epochs.items() if b >= 16]


def _stragglers(folder: Path) -> Pairs:
    """The slowest worker over the mean, against jitter of the same spread."""
    pairs = []
    rng = np.random.default_rng(0)
    for job in (1, 2, 3):
        steps: dict[str, list[float]] = defaultdict(list)
        for row in _rows(folder / "stragglers" / f"job_{job}.csv"):
            steps[row["time"]].append(float(row["batch_time_norm"]))
        complete = np.array([v for v in steps.values() if len(v) == 10 and min(v) > 0])
        measured = float((complete.max(axis=1) / complete.mean(axis=1)).mean())
        spread_within = float(np.median(complete.std(axis=1) / complete.mean(axis=1)))
        jitter = Jitter.of(Synchronous(gpus=10, jitter=spread_within))
        # Many runs, because the slowest worker of one run stays the slowest.
        drawn = np.concatenate([jitter.factors(40, 10, rng) for _ in range(100)])
        pairs.append((measured, float((drawn.max(axis=1) / drawn.mean(axis=1)).mean())))
    return pairs


@dataclass(frozen=True)
class MeasurementComparison:
    """A set of published measurements, and how to simulate them."""

    what: str
    source: str
    compare: Callable[[Path], Pairs]

    def accuracy(self, folder: Path) -> Accuracy:
        """Errors on the measurements in the folder."""
        return Accuracy.of(self.what, self.source, self.compare(folder))


COMPARISONS = (
    MeasurementComparison("GPT steps, 2 to 8 A100", "vTrain", partial(_gpt, name="2_to_8_a100")),
    MeasurementComparison("GPT steps, 64 A100", "vTrain", partial(_gpt, name="64_a100")),
    MeasurementComparison("all-reduce, 2 to 8 A100, NVLink", "vTrain", _nccl),
    MeasurementComparison(
        "FP32 products, TITAN X",
        "DeepBench",
        partial(_products, file="titanx_maxwell", name="titan-x"),
    ),
    MeasurementComparison(
        "FP32 products, M40", "DeepBench", partial(_products, file="m40", name="m40")
    ),
    MeasurementComparison("all-reduce, 2 to 32 M40, PCIe and FDR", "DeepBench", _ring),
    MeasurementComparison("ResNet-50 epochs, V100", "Zeus", partial(_epochs, gpu="v100")),
    MeasurementComparison("ResNet-50 epochs, P100", "Zeus", partial(_epochs, gpu="p100")),
    MeasurementComparison("ResNet-50 slow-down by caps, V100", "Zeus", partial(_caps, gpu="v100")),
    MeasurementComparison("ResNet-50 slow-down by caps, P100", "Zeus", partial(_caps, gpu="p100")),
    MeasurementComparison(
        "ResNet-50 GPU power under caps, V100", "Zeus", partial(_power, gpu="v100")
    ),
    MeasurementComparison("BERT steps, 1 to 16 T4 on 1 to 4 nodes", "Pollux", _bert),
    MeasurementComparison("H100 node power in training", "MLPerf 4.0", _node_power),
    MeasurementComparison("epochs to target by batch, ShuffleNet", "Zeus", _convergence),
    MeasurementComparison("slowest of 10 workers, jobs 1 to 3", "Alibaba", _stragglers),
)
