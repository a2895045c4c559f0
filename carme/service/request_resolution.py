"""Resolves the names in a request to workloads, hardware, plans and calibrations."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from carme import library
from carme.errors import InputError, MissingError
from carme.predict.cluster_hardware import hardware_of
from carme.predict.coefficients import DATA_SHEET, Calibration
from carme.service.context import ServiceContext
from carme.service.cost_limits import check_workload
from carme.service.hub_client import Caller
from carme.service.models.requests import HardwareQuery
from carme.service.store import CalibrationRow, WorkloadRow
from carme.simulator.hardware import Cluster
from carme.simulator.plans import BasePlan
from carme.simulator.workload import Workload

MOST_GPUS = 100_000


def find_workload(
    context: ServiceContext, who: Caller, given: str | Workload, samples: int | None = None
) -> Workload:
    """The workload itself, one of the user's own, or a bundled one."""
    workload = given if isinstance(given, Workload) else _named(context, who, given)
    check_workload(workload)
    if samples is not None:
        dataset = workload.dataset.model_copy(update={"samples": samples})
        workload = workload.model_copy(update={"dataset": dataset})
    return workload


def _named(context: ServiceContext, who: Caller, name: str) -> Workload:
    plain = name.strip().lower().replace(" ", "-")
    if plain in library.names("workloads"):
        return library.workload(plain)
    rows = context.store.page(WorkloadRow, who.name, 1, None, name=plain)
    if rows:
        return Workload.model_validate(rows[0].body)
    # Never library.workload(name) with a user's text: it would open files.
    raise MissingError(f"no workload {name!r}", "GET workloads lists yours and the bundled ones")


def find_hardware(context: ServiceContext, given: HardwareQuery) -> tuple[Cluster, int]:
    """The hardware, and how many of its GPUs the request names."""
    if given.partition is not None:
        snapshot = context.cluster.snapshot()
        names = context.config.service.hardware
        cluster = hardware_of(snapshot, given.partition, given.gpu_type, names)
        return cluster, given.count
    count, _ = library.parse_gpus(given.gpus or "")
    if count > MOST_GPUS:
        raise InputError(f"{count} GPUs", f"at most {MOST_GPUS}")
    node, network = given.node, given.network
    return library.cluster_of(given.gpus or "", node_name=node, network=network), count


def with_count(plan: BasePlan, count: int) -> BasePlan:
    """The plan on so many GPUs, unless it names a number itself."""
    if "gpus" in plan.model_fields_set:
        return plan
    return type(plan).model_validate({**plan.model_dump(exclude_unset=True), "gpus": count})


def find_knowledge(
    context: ServiceContext, who: Caller, workload: str, gpu: str, wanted: str | None
) -> tuple[Calibration, tuple[str, ...]]:
    """The newest calibration of the user for this workload and GPU, or the one asked for; and what
    there is to say about the choice."""
    if wanted == "none":
        return DATA_SHEET, ()
    if wanted is not None:
        row = context.store.get(CalibrationRow, wanted)
        if row is None or not who.may_see(row.user):
            raise MissingError(f"no calibration {wanted}", "GET calibrations lists yours")
        if row.gpu != gpu:
            raise InputError(f"calibration {wanted} is for {row.gpu}, not {gpu}", "leave it out")
        return row.calibration, ()
    try:
        return context.newest_calibration(who.name, workload, gpu) or DATA_SHEET, ()
    except SQLAlchemyError:
        return DATA_SHEET, ("the database does not answer, so fits could not be used",)
