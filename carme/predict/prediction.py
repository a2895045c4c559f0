"""One prediction: the simulator's answer with coefficients, intervals and everything said."""

from __future__ import annotations

from itertools import product
from math import log2
from typing import Any, Literal

from carme.errors import InputError
from carme.predict.coefficients import DATA_SHEET, Calibration, Coefficients, Provenance
from carme.predict.estimates import Estimate, FrozenModel, Spread
from carme.simulator.analysis.scaling_limits import ScalingLimits, survey
from carme.simulator.analysis.scaling_limits import read as read_limit
from carme.simulator.analysis.timeline import burst_figures, window
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import BasePlan, Synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.simulate import simulate
from carme.simulator.runs.synchronous import from_step
from carme.simulator.runs.totals import JOULES_PER_KWH
from carme.simulator.workloads.workload import Workload

EXTRAPOLATION = 0.04
"""Standard deviation for each doubling of the batch or of the workers away from what was seen."""


SAMPLE_SECONDS = 0.05
"""As the exporter profiles jobs."""

MOST_PIECES = 4000
"""Micro-batches times stages in which bursts are looked for: each is an event, all a second."""


class Rates(FrozenModel):
    """What a kilowatt hour emits and costs here."""

    grams_co2_per_kwh: float = 480.0
    pue: float = 1.0
    price_per_kwh: float | None = None
    currency: str = "EUR"


WORLD = Rates()


class PhaseEstimate(FrozenModel):
    name: str
    seconds: float
    share: float
    time: Estimate | None = None
    """The seconds with their interval; unset in predictions kept by older releases."""


class MemoryFit(FrozenModel):
    """Of one GPU."""

    fits: bool
    needed_bytes: float
    capacity_bytes: float
    why_not: str = ""


class BindingLimit(FrozenModel):
    """What costs most beside the work itself."""

    limit: str
    efficiency: float
    """Work done over what each GPU would do alone."""
    next_limit: str | None = None
    next_limit_gpus: int | None = None
    stalls_at_gpus: int | None = None
    """The first count that is not faster by a quarter than half as many."""


class BurstEstimate(FrozenModel):
    """How a resource is used within a step: bursts and idle times in turn, or one of them."""

    resource: str
    pattern: Literal["BIB", "B", "I"]
    burst_seconds: float
    idle_seconds: float
    burst_amount: float
    idle_amount: float
    burst_time: Estimate | None = None
    idle_time: Estimate | None = None
    """With their intervals; unset in predictions kept by older releases."""


class IdleEstimate(FrozenModel):
    """Of the plan's GPUs: time and energy in which they compute nothing."""

    share: float
    gpu_energy: Estimate


class Prediction(FrozenModel):
    """What a training run takes. `gpu_energy` is the plan's GPUs alone; `node_energy` is the nodes
    they are in, idle GPUs and hosts included, without cooling."""

    workload: str
    hardware: str
    gpu: str
    gpus: int
    nodes: int
    plan: dict[str, Any]
    time: Estimate
    step_time: Estimate
    steps: float
    epochs: float
    batch: float
    samples_per_second: float
    gpu_energy: Estimate
    node_energy: Estimate
    average_gpu_power: Estimate
    """Of one GPU."""
    peak_gpu_power: Estimate
    """Of one GPU."""
    average_node_power: Estimate
    """Of all nodes together."""
    emissions: Estimate
    """From node energy times PUE."""
    cost: Estimate | None
    """Of node energy times PUE; none where no price is set."""
    phases: tuple[PhaseEstimate, ...]
    memory: MemoryFit
    limit: BindingLimit | None
    bursts: tuple[BurstEstimate, ...]
    idle: IdleEstimate
    coefficients: Coefficients
    provenance: Provenance
    notes: tuple[str, ...] = ()


def predict(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    knowledge: Calibration = DATA_SHEET,
    rates: Rates = WORLD,
    *,
    scaling: bool = False,
    detail: bool = True,
) -> Prediction:
    """The prediction; `scaling` also looks at larger GPU counts for the next limit, and without
    `detail` there are no limit and no bursts, for comparing many choices."""
    seen, place = knowledge.coefficients.apply(workload, cluster)
    place = place.model_copy(
        update={"grams_co2_per_kwh": rates.grams_co2_per_kwh, "pue": rates.pue}
    )
    step = plan_step(seen, place, plan) if isinstance(plan, Synchronous) else None
    result = (
        from_step(seen, place, plan, step)
        if step and isinstance(plan, Synchronous)
        else simulate(seen, place, plan)
    )
    time = knowledge.time * _far(knowledge.provenance, result)
    energy = time * knowledge.power
    facility_kwh = result.facility_joules / JOULES_PER_KWH
    price = rates.price_per_kwh
    return Prediction(
        workload=workload.name,
        hardware=cluster.title or cluster.name,
        gpu=cluster.node.gpu.name,
        gpus=result.gpus,
        nodes=result.nodes,
        plan=result.plan,
        time=time.figure(result.seconds, "s"),
        step_time=time.figure(result.step_seconds, "s"),
        steps=result.steps,
        epochs=result.epochs,
        batch=result.batch,
        samples_per_second=result.throughput,
        gpu_energy=energy.figure(result.gpu_joules, "J"),
        node_energy=energy.figure(result.node_joules, "J"),
        average_gpu_power=knowledge.power.figure(result.average_gpu_watts, "W"),
        peak_gpu_power=knowledge.power.figure(result.peak_gpu_watts, "W"),
        average_node_power=knowledge.power.figure(result.average_node_watts, "W"),
        emissions=energy.figure(result.grams_co2, "g CO2e"),
        cost=energy.figure(facility_kwh * price, rates.currency) if price is not None else None,
        phases=tuple(
            PhaseEstimate(
                name=name,
                seconds=seconds,
                share=seconds / result.seconds,
                time=time.figure(seconds, "s"),
            )
            for name, seconds in result.phases.items()
            if seconds > 0
        ),
        memory=MemoryFit(
            fits=result.memory.fits,
            needed_bytes=result.memory.total,
            capacity_bytes=result.memory.capacity,
            why_not="" if result.memory.fits else result.memory.why_not(),
        ),
        limit=_limit(seen, place, plan, step, result, scaling) if detail else None,
        bursts=_bursts(seen, place, plan, step, result.step_seconds, time) if detail else (),
        idle=_idle(result, energy),
        coefficients=knowledge.coefficients,
        provenance=knowledge.provenance,
        notes=_notes(workload, result, knowledge),
    )


def _far(known: Provenance, result: SimulationResult) -> Spread:
    """What going beyond the measured batches and workers adds to the error."""
    points = known.points or tuple(product(known.batches, known.workers))
    if not points:
        return Spread(sigma=0.0)
    each = result.batch / result.gpus
    doublings = min(
        abs(log2(each / (batch / workers))) + abs(log2(result.gpus / workers))
        for batch, workers in points
    )
    return Spread(sigma=EXTRAPOLATION * doublings)


def _limit(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    step: Step | None,
    result: SimulationResult,
    scaling: bool,
) -> BindingLimit | None:
    if not isinstance(plan, Synchronous) or step is None:
        return None
    if not scaling:
        read = read_limit(workload, cluster, plan, step, result)
        return BindingLimit(limit=read.limit, efficiency=read.efficiency)
    try:
        found: ScalingLimits = survey(workload, cluster, plan)
    except InputError:
        return None
    here = next(r for r in found.readings if r.gpus == found.gpus)
    return BindingLimit(
        limit=found.limit,
        efficiency=here.efficiency,
        next_limit=found.next_limit,
        next_limit_gpus=found.next_gpus,
        stalls_at_gpus=found.stalls_at,
    )


def _bursts(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    step: Step | None,
    step_seconds: float,
    time: Spread,
) -> tuple[BurstEstimate, ...]:
    """Of the first GPU; its neighbours look alike, so two are enough to look at."""
    if isinstance(plan, Synchronous) and step and plan.pipeline > 1:
        micro_batches = step.samples / plan.copies / (plan.micro_batch or 1)
        if plan.pipeline * micro_batches > MOST_PIECES:
            return ()
    try:
        seen = window(workload, cluster, plan, steps=2, workers=2, step=step)
        found = burst_figures(seen, max(SAMPLE_SECONDS, step_seconds / 200))
    except InputError:
        return ()
    return tuple(
        BurstEstimate(
            resource=name,
            **figures._asdict(),
            burst_time=time.figure(figures.burst_seconds, "s"),
            idle_time=time.figure(figures.idle_seconds, "s"),
        )
        for name, figures in found.items()
    )


def _idle(result: SimulationResult, energy: Spread) -> IdleEstimate:
    working = result.phases["compute"] + result.phases["update"]
    seconds = max(result.seconds - working, 0.0)
    joules = sum(
        s.seconds * s.gpu_watts for s in result.segments if s.phase not in ("compute", "update")
    )
    return IdleEstimate(
        share=seconds / result.seconds if result.seconds else 0.0,
        gpu_energy=energy.figure(result.gpus * joules, "J"),
    )


def _notes(workload: Workload, result: SimulationResult, knowledge: Calibration) -> tuple[str, ...]:
    notes: list[str] = []
    if workload.unknown_operators:
        names = ", ".join(workload.unknown_operators[:5])
        notes.append(f"operators estimated from their tensors: {names}")
    if result.gpus > 1 and "network" in knowledge.provenance.unseen:
        notes.append("communication was not measured: it is the data sheet's")
    crowd = knowledge.provenance.workers
    if crowd and result.gpus not in crowd and "shared_compute" in knowledge.provenance.unseen:
        notes.append("how workers on a node slow each other was not measured")
    return tuple(notes)
