"""One prediction: the simulator's result with calibrated coefficients and 90 % intervals."""

from __future__ import annotations

from itertools import product
from math import log2
from typing import Any, Literal

from pydantic import Field

from carme.errors import InputError
from carme.predict.coefficients import DATA_SHEET, Calibration, Coefficients, Provenance
from carme.predict.estimates import Estimate, FrozenModel, Spread
from carme.predict.simulation_limits import MAX_BURST_SLOTS
from carme.simulator.analysis.scaling_limits import scaling_limits, scaling_point
from carme.simulator.analysis.timeline import burst_figures, simulate_window
from carme.simulator.costs.step import Step, plan_step
from carme.simulator.hardware import Cluster
from carme.simulator.plans import BasePlan, Synchronous
from carme.simulator.runs import simulate
from carme.simulator.runs.result import JOULES_PER_KWH, SimulationResult
from carme.simulator.runs.synchronous import run_synchronous
from carme.simulator.workload import Workload

EXTRAPOLATION = 0.04
"""Standard deviation for each doubling of the local batch or of the workers from a measured one."""


class Rates(FrozenModel):
    """Emissions and price of a kilowatt hour at this site."""

    grams_co2_per_kwh: float = 480.0
    pue: float = 1.0
    price_per_kwh: float | None = None
    currency: str = "EUR"

    def apply(self, cluster: Cluster) -> Cluster:
        """The cluster with these emissions and this PUE."""
        rates = {"grams_co2_per_kwh": self.grams_co2_per_kwh, "pue": self.pue}
        return cluster.model_copy(update=rates)


WORLD = Rates()


class PhaseEstimate(FrozenModel):
    name: str
    seconds: float
    share: float
    time: Estimate | None = None
    """The seconds with their interval; unset in predictions stored by older releases."""


class MemoryFit(FrozenModel):
    """Memory of one GPU."""

    fits: bool
    needed_bytes: float
    capacity_bytes: float
    why_not: str = ""
    parts_bytes: dict[str, float] = Field(default_factory=dict)
    """By use: weights, gradients, optimizer, activations and the rest."""


class BindingLimit(FrozenModel):
    """The cause that costs most time, apart from the computation itself."""

    limit: str
    efficiency: float
    """Throughput over that of the same GPUs if each worked as fast as one alone."""
    next_limit: str | None = None
    next_limit_gpus: int | None = None
    stalls_at_gpus: int | None = None
    """The first GPU count that is not at least 1.25 times as fast as half as many GPUs."""


class BurstEstimate(FrozenModel):
    """Use of a resource within a step: alternating bursts and idle times, or one of them."""

    resource: str
    pattern: Literal["BIB", "B", "I"]
    burst_seconds: float
    idle_seconds: float
    burst_amount: float
    idle_amount: float
    burst_time: Estimate | None = None
    idle_time: Estimate | None = None
    """With their intervals; unset in predictions stored by older releases."""


class IdleEstimate(FrozenModel):
    """Share of the time, and GPU energy, in which the plan's GPUs compute nothing."""

    share: float
    gpu_energy: Estimate


class Prediction(FrozenModel):
    """What a training run takes. `gpu_energy` is that of the plan's GPUs. `node_energy` is the
    charged energy: the GPUs and the job's share of the hosts, without cooling. That share follows
    the energy ledger's rule for the rest of a node, and approximates it for processors and memory.
    On nodes without a meter of the whole node, the ledger charges no rest, so it charges less."""

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
    whole_node_energy: Estimate | None = None
    """Of the nodes as a meter reads them if nothing else runs there: hosts and all GPUs; unset in
    predictions stored by older releases."""
    average_gpu_power: Estimate
    """Of one GPU."""
    peak_gpu_power: Estimate
    """Of one GPU."""
    average_node_power: Estimate
    """Charged power: charged energy over time, of all nodes together."""
    emissions: Estimate
    """From charged energy times PUE."""
    cost: Estimate | None
    """Of charged energy times PUE; none where no price is set."""
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
    calibration: Calibration = DATA_SHEET,
    rates: Rates = WORLD,
    *,
    scaling: bool = False,
    detail: bool = True,
) -> Prediction:
    """The prediction. `scaling` also simulates larger GPU counts to find the next limit. Without
    `detail` there is no limit and there are no bursts, which is faster for many choices."""
    calibrated, hardware = calibration.coefficients.apply(workload, cluster)
    hardware = rates.apply(hardware)
    if isinstance(plan, Synchronous):
        step = plan_step(calibrated, hardware, plan)
        result = run_synchronous(calibrated, hardware, plan, step)
    else:
        step, result = None, simulate(calibrated, hardware, plan)
    time = calibration.time * _extrapolation(calibration.provenance, result)
    energy = time * calibration.power
    facility_kwh = result.facility_joules / JOULES_PER_KWH
    price = rates.price_per_kwh
    return Prediction(
        workload=workload.name,
        hardware=cluster.title or cluster.name,
        gpu=cluster.node.gpu.name,
        gpus=result.gpus,
        nodes=result.nodes,
        plan=result.plan,
        time=time.estimate(result.seconds, "s"),
        step_time=time.estimate(result.step_seconds, "s"),
        steps=result.steps,
        epochs=result.epochs,
        batch=result.batch,
        samples_per_second=result.throughput,
        gpu_energy=energy.estimate(result.gpu_joules, "J"),
        node_energy=energy.estimate(result.node_joules, "J"),
        whole_node_energy=energy.estimate(result.whole_node_joules, "J"),
        average_gpu_power=calibration.power.estimate(result.average_gpu_watts, "W"),
        peak_gpu_power=calibration.power.estimate(result.peak_gpu_watts, "W"),
        average_node_power=calibration.power.estimate(result.average_node_watts, "W"),
        emissions=energy.estimate(result.grams_co2, "g CO2e"),
        cost=energy.estimate(facility_kwh * price, rates.currency) if price is not None else None,
        phases=tuple(
            PhaseEstimate(
                name=name,
                seconds=seconds,
                share=seconds / result.seconds,
                time=time.estimate(seconds, "s"),
            )
            for name, seconds in result.phases.items()
            if seconds > 0
        ),
        memory=MemoryFit(
            fits=result.memory.fits,
            needed_bytes=result.memory.total,
            capacity_bytes=result.memory.capacity,
            why_not="" if result.memory.fits else result.memory.why_not(),
            parts_bytes=result.memory.parts(),
        ),
        limit=_limit(calibrated, hardware, plan, step, result, scaling) if detail else None,
        bursts=(_bursts(calibrated, hardware, plan, step, time) if detail else ()),
        idle=_idle(result, energy),
        coefficients=calibration.coefficients,
        provenance=calibration.provenance,
        notes=_notes(workload, result, calibration),
    )


def _extrapolation(provenance: Provenance, result: SimulationResult) -> Spread:
    """The error that a distance to the measured batches and workers adds."""
    points = provenance.points or tuple(product(provenance.batches, provenance.workers))
    if not points:
        return Spread(sigma=0.0)
    local_batch = result.batch / result.gpus
    doublings = min(
        abs(log2(local_batch / (batch / workers))) + abs(log2(result.gpus / workers))
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
        point = scaling_point(workload, cluster, plan, step, result)
        return BindingLimit(limit=point.limit, efficiency=point.efficiency)
    try:
        limits = scaling_limits(workload, cluster, plan)
    except InputError:
        return None
    current = next(p for p in limits.points if p.gpus == limits.gpus)
    return BindingLimit(
        limit=limits.limit,
        efficiency=current.efficiency,
        next_limit=limits.next_limit,
        next_limit_gpus=limits.next_gpus,
        stalls_at_gpus=limits.stalls_at,
    )


def _bursts(
    workload: Workload,
    cluster: Cluster,
    plan: BasePlan,
    step: Step | None,
    time: Spread,
) -> tuple[BurstEstimate, ...]:
    """Bursts on the first GPU; workers look alike, so two are simulated."""
    if isinstance(plan, Synchronous) and step and plan.pipeline > 1:
        micro_batches = step.samples / plan.data_parallel / (plan.micro_batch or 1)
        if plan.pipeline * micro_batches > MAX_BURST_SLOTS:
            return ()
    try:
        window = simulate_window(workload, cluster, plan, steps=4, workers=2, step=step)
        bursts = burst_figures(window)
    except InputError:
        return ()
    return tuple(
        BurstEstimate(
            resource=name,
            **figures._asdict(),
            burst_time=time.estimate(figures.burst_seconds, "s"),
            idle_time=time.estimate(figures.idle_seconds, "s"),
        )
        for name, figures in bursts.items()
    )


def _idle(result: SimulationResult, energy: Spread) -> IdleEstimate:
    working = result.phases["compute"] + result.phases["update"]
    seconds = max(result.seconds - working, 0.0)
    joules = sum(
        s.seconds * s.gpu_watts for s in result.segments if s.phase not in ("compute", "update")
    )
    return IdleEstimate(
        share=seconds / result.seconds if result.seconds else 0.0,
        gpu_energy=energy.estimate(result.gpus * joules, "J"),
    )


def _notes(
    workload: Workload, result: SimulationResult, calibration: Calibration
) -> tuple[str, ...]:
    notes = list(workload.warnings)
    if workload.unknown_operators and not workload.warnings:  # stored before there were warnings
        names = ", ".join(workload.unknown_operators[:5])
        notes.append(f"operators estimated from their tensors: {names}")
    if result.gpus > 1 and "network" in calibration.provenance.unseen:
        notes.append("communication was not measured: it is the data sheet's")
    measured = calibration.provenance.workers
    if (
        measured
        and result.gpus not in measured
        and "shared_compute" in calibration.provenance.unseen
    ):
        notes.append("how workers on a node slow each other was not measured")
    return tuple(notes)
