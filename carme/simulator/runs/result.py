"""The result of a run: time, energy, phases and memory, summed up from its segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.costs.collectives import broadcast_seconds, collective_group, placed_node
from carme.simulator.costs.memory import Memory, model_bytes
from carme.simulator.costs.step import initial_loading_seconds
from carme.simulator.hardware import Cluster, NodeModel
from carme.simulator.plans import BasePlan
from carme.simulator.workload import Floats, Workload

PHASES = ("startup", "load", "broadcast", "compute", "communication", "update", "wait")
SETUP_PHASES = PHASES[:3]
"""Before the first step."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
JOULES_PER_KWH = 3.6e6


class Distribution(NamedTuple):
    """Values and how often each occurs, as shares that sum to 1."""

    values: Floats
    shares: Floats

    @classmethod
    def of(cls, samples: NDArray[Any]) -> Distribution:
        values, counts = np.unique(np.asarray(samples, dtype=float), return_counts=True)
        return cls(values, counts / counts.sum())

    @property
    def mean(self) -> float:
        return float(self.values @ self.shares)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(((self.values - self.mean) ** 2) @ self.shares))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "values": self.values.tolist(),
            "shares": self.shares.tolist(),
        }


@dataclass(frozen=True)
class Segment:
    """A part of the run in one phase, with its mean draw."""

    phase: str
    seconds: float
    gpu_watts: float
    """Of one GPU of the plan."""


@dataclass(frozen=True)
class SimulationResult:
    """One simulated run. Joules and watts say in their names whether GPUs or nodes are meant."""

    workload: str
    cluster: str
    plan: dict[str, Any]
    gpus: int
    nodes: int
    seconds: float
    phases: dict[str, float]
    """Seconds of the whole run by phase; they sum to `seconds`."""
    gpu_joules: float
    """Of the plan's GPUs."""
    node_joules: float
    """Charged to the job: its GPUs and its share of the hosts (`charged_host_watts`); without
    cooling."""
    whole_node_joules: float
    """Of the nodes as a meter reads them if nothing else runs there: hosts and all GPUs."""
    facility_joules: float
    """Charged energy times PUE."""
    grams_co2: float
    samples: float
    """Processed in the run, repeats counted."""
    steps: float
    step_seconds: float
    """Mean."""
    epochs: float
    batch: float
    """Samples of one step, or mean samples of one update."""
    memory: Memory
    segments: tuple[Segment, ...]
    """The run in the order of its phases."""
    host_watts: float
    """Charged to the job for the host of one node, without GPUs, while training."""
    peak_gpu_watts: float
    bytes_sent_per_step: float = 0.0
    """By each GPU, for gradients."""
    clock: float = 1.0
    """Relative; below 1 when a power cap binds."""
    step_quantiles: dict[str, float] = field(default_factory=dict)
    mini_batch: Distribution | None = None
    staleness: Distribution | None = None
    notes: tuple[str, ...] = ()

    @property
    def throughput(self) -> float:
        """Samples a second while training."""
        training = self.seconds - sum(self.phases[p] for p in SETUP_PHASES)
        return self.samples / training if training > 0 else 0.0

    @property
    def average_gpu_watts(self) -> float:
        """Of one GPU over the run."""
        return self.gpu_joules / self.seconds / self.gpus

    @property
    def average_node_watts(self) -> float:
        """Charged energy over time, of all nodes together."""
        return self.node_joules / self.seconds

    def power_curve(self) -> list[tuple[float, float, float]]:
        """(from second, watts of one GPU, watts charged to the job on one node), phase by phase.

        Each phase has its mean draw; `carme.simulator.simulate_window` has every operation.
        """
        per_node = self.gpus / self.nodes
        curve, now = [], 0.0
        for segment in self.segments:
            node = segment.gpu_watts * per_node + self.host_watts
            curve.append((now, segment.gpu_watts, node))
            now += segment.seconds
        return curve

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "workload": self.workload,
            "cluster": self.cluster,
            "plan": self.plan,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "seconds": self.seconds,
            "phases_seconds": self.phases,
            "gpu_joules": self.gpu_joules,
            "node_joules": self.node_joules,
            "whole_node_joules": self.whole_node_joules,
            "facility_joules": self.facility_joules,
            "average_gpu_watts": self.average_gpu_watts,
            "average_node_watts": self.average_node_watts,
            "peak_gpu_watts": self.peak_gpu_watts,
            "power_curve": [
                {"from_seconds": begin, "gpu_watts": gpu, "node_watts": node}
                for begin, gpu, node in self.power_curve()
            ],
            "grams_co2": self.grams_co2,
            "epochs": self.epochs,
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "step_quantiles_seconds": self.step_quantiles,
            "batch": self.batch,
            "samples": self.samples,
            "samples_per_second": self.throughput,
            "memory_bytes": {**self.memory._asdict(), "total": self.memory.total},
            "memory_fits": self.memory.fits,
            "clock": self.clock,
            "mini_batch": self.mini_batch.to_dict() if self.mini_batch else None,
            "staleness": self.staleness.to_dict() if self.staleness else None,
            "notes": list(self.notes),
        }


def total_epochs(workload: Workload, plan: BasePlan, batch: float) -> float:
    """Epochs of the run, over all GPUs together."""
    if plan.epochs is not None:
        epochs = plan.epochs
    elif plan.to_target and workload.convergence:
        epochs = workload.convergence.epochs_for(batch)
    else:
        epochs = workload.epochs
    return epochs * plan.gpus if plan.scaling == "weak" else epochs


def startup(workload: Workload, cluster: Cluster, plan: BasePlan) -> list[Segment]:
    """Segments before the first step, in which the GPUs idle."""
    idle = cluster.node.gpu.power.idle_watts
    load, skew = initial_loading_seconds(workload, cluster, plan)
    segments = [Segment("startup", plan.startup_seconds, idle), Segment("load", load, idle)]
    if plan.broadcast and plan.gpus > 1:
        group = collective_group(plan.gpus, placed_node(cluster.node, plan))
        seconds = broadcast_seconds(model_bytes(workload, plan), group, cluster.node)
        segments.append(Segment("broadcast", seconds + skew, idle))
    return segments


def charged_host_watts(node: NodeModel, plan: BasePlan) -> tuple[float, float]:
    """Watts of all hosts that are charged to the job, while they idle and while it trains.

    The idle draw is charged by the energy ledger's rule for the rest of a node: by the largest of
    the job's shares of GPUs, processors and memory. The draw above idle is charged by GPUs, because
    `busy_watts` is the draw of a host whose GPUs all train. For processors and memory this is an
    approximation: where RAPL meters them, the ledger divides their energy by processor time and by
    memory held. On a node without a meter, the ledger charges no rest.
    """
    nodes = node_count(node, plan)
    held_nodes = max(plan.gpus / node.gpus, nodes * (plan.node_share or 0.0))
    idle = node.idle_watts * held_nodes
    return idle, idle + _training_host_watts(node, plan)


def node_count(node: NodeModel, plan: BasePlan) -> int:
    """The nodes of a plan; unless it names their number, its GPUs fill one after the other."""
    return plan.nodes or -(-plan.gpus // node.gpus)


def _training_host_watts(node: NodeModel, plan: BasePlan) -> float:
    """Watts of all hosts above their idle draw while the job trains."""
    return (node.busy_watts - node.idle_watts) * plan.gpus / node.gpus


def totals(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    segments: list[Segment],
    memory: Memory,
    *,
    samples: float,
    steps: float,
    epochs: float,
    batch: float,
    **details: Any,
) -> SimulationResult:
    """The result that the segments sum up to. All GPUs of the plan have the same segments."""
    phases = dict.fromkeys(PHASES, 0.0)
    for segment in segments:
        phases[segment.phase] += segment.seconds
    seconds = sum(phases.values())
    node = cluster.node
    nodes = node_count(node, plan)
    idle_gpus = nodes * node.gpus - plan.gpus
    active = seconds - phases["startup"]
    gpu_joules = plan.gpus * sum(s.seconds * s.gpu_watts for s in segments)
    idle_watts, training_watts = charged_host_watts(node, plan)
    node_joules = gpu_joules + idle_watts * phases["startup"] + training_watts * active
    hosts = nodes * node.idle_watts * seconds + _training_host_watts(node, plan) * active
    unallocated = idle_gpus * node.gpu.power.idle_watts * seconds
    facility = node_joules * cluster.pue
    training = [s for s in segments if s.phase not in SETUP_PHASES]
    return SimulationResult(
        workload=workload.name,
        cluster=cluster.name,
        plan=plan.model_dump(mode="json", exclude_defaults=True) | {"gpus": plan.gpus},
        gpus=plan.gpus,
        nodes=nodes,
        seconds=seconds,
        phases=phases,
        gpu_joules=gpu_joules,
        node_joules=node_joules,
        whole_node_joules=gpu_joules + hosts + unallocated,
        facility_joules=facility,
        grams_co2=facility / JOULES_PER_KWH * cluster.grams_co2_per_kwh,
        samples=samples,
        steps=steps,
        step_seconds=sum(s.seconds for s in training) / steps if steps else 0.0,
        epochs=epochs,
        batch=batch,
        memory=memory,
        segments=tuple(s for s in segments if s.seconds > 0),
        host_watts=training_watts / nodes,
        peak_gpu_watts=max((s.gpu_watts for s in segments if s.seconds > 0), default=0.0),
        **details,
    )
