"""What the runs of all plans share: epochs, the segments before the first step, and the totals."""

from __future__ import annotations

from typing import Any

from carme.simulator.costs.collectives import broadcast_seconds, collective_group
from carme.simulator.costs.data_loading import initial_loading_seconds, loading_skew_seconds
from carme.simulator.costs.memory import Memory, model_bytes
from carme.simulator.hardware.cluster import Cluster, NodeModel
from carme.simulator.plans.plan import BasePlan
from carme.simulator.runs.result import PHASES, Segment, SimulationResult
from carme.simulator.workloads.workload import Workload

JOULES_PER_KWH = 3.6e6


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
    load = initial_loading_seconds(workload, cluster, plan)
    segments = [Segment("startup", plan.startup_seconds, idle), Segment("load", load, idle)]
    if plan.broadcast and plan.gpus > 1:
        group = collective_group(plan.gpus, cluster.node)
        seconds = broadcast_seconds(model_bytes(workload, plan), group, cluster.node)
        seconds += loading_skew_seconds(workload, plan)
        segments.append(Segment("broadcast", seconds, idle))
    return segments


def charged_host_watts(node: NodeModel, plan: BasePlan) -> tuple[float, float]:
    """Watts of all hosts that are charged to the job, while they idle and while it trains.

    The rule is that of the exporter's energy ledger. The idle draw is divided by how much of a node
    the job holds, the largest of its shares of GPUs, processors and memory. The draw above idle
    follows processor time, which the simulator divides by GPUs: `busy_watts` is the draw of a host
    whose GPUs all train.
    """
    full_nodes, remaining_gpus = divmod(plan.gpus, node.gpus)
    held_nodes = float(full_nodes)
    if remaining_gpus:
        held_nodes += max(remaining_gpus / node.gpus, plan.node_share or 0.0)
    idle = node.idle_watts * held_nodes
    return idle, idle + (node.busy_watts - node.idle_watts) * plan.gpus / node.gpus


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
    nodes = -(-plan.gpus // node.gpus)
    idle_gpus = nodes * node.gpus - plan.gpus
    active = seconds - phases["startup"]
    gpu_joules = plan.gpus * sum(s.seconds * s.gpu_watts for s in segments)
    idle_watts, training_watts = charged_host_watts(node, plan)
    node_joules = gpu_joules + idle_watts * phases["startup"] + training_watts * active
    hosts = nodes * (node.busy_watts * active + node.idle_watts * phases["startup"])
    unallocated = idle_gpus * node.gpu.power.idle_watts * seconds
    facility = node_joules * cluster.pue
    training = [s for s in segments if s.phase not in ("startup", "load", "broadcast")]
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
