"""The result of a simulation: time, energy, phases, memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from carme.simulator.costs.memory import Memory
from carme.simulator.runs.staleness import Distribution

PHASES = ("startup", "load", "broadcast", "compute", "communication", "update", "wait")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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
    """Charged to the job: its GPUs and its share of the hosts, by the rule of the energy ledger;
    without cooling."""
    whole_node_joules: float
    """Of the nodes as a meter reads them: hosts and all GPUs, those of nobody included."""
    facility_joules: float
    """Node energy times PUE."""
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
        training = self.seconds - sum(self.phases[p] for p in ("startup", "load", "broadcast"))
        return self.samples / training if training > 0 else 0.0

    @property
    def average_gpu_watts(self) -> float:
        """Of one GPU over the run."""
        return self.gpu_joules / self.seconds / self.gpus

    @property
    def average_node_watts(self) -> float:
        """Node energy over time: of all nodes together, charged to the job."""
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

        def plain(distribution: Distribution | None) -> dict[str, Any] | None:
            if distribution is None:
                return None
            return {
                "mean": distribution.mean,
                "deviation": distribution.deviation,
                "values": distribution.values.tolist(),
                "shares": distribution.shares.tolist(),
            }

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
            "mini_batch": plain(self.mini_batch),
            "staleness": plain(self.staleness),
            "notes": list(self.notes),
        }
