"""Resolves the names in a request to workloads, hardware, plans and calibrations."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from carme import library
from carme.errors import InputError, MissingError
from carme.predict.cluster_hardware import (
    hardware_of,
    held_node_share,
    requested_gpu_type,
    worker_count,
)
from carme.predict.coefficients import DATA_SHEET, Calibration
from carme.predict.simulation_limits import check_workload
from carme.requests.resource_request import AdviceRequest
from carme.service.context import ServiceContext
from carme.service.hub_client import Caller
from carme.service.models import HardwareQuery, PredictionRequest
from carme.service.store import CalibrationRow, WorkloadRow
from carme.simulator.hardware import Cluster
from carme.simulator.plans import BasePlan, Synchronous
from carme.simulator.workload import Workload
from carme.slurm.snapshot import Snapshot

MAX_GPUS = 100_000


def prediction_request(request: AdviceRequest, snapshot: Snapshot) -> PredictionRequest:
    """What to predict for a session: the same for the advice in the form and for the job.

    Raises InputError if the request has no GPU of a partition with GPUs.
    """
    if not request.gpus and snapshot.gpus_total(request.partition):
        raise InputError("no GPU is requested; choose at least one to see what this workload takes")
    count, gpu_type = worker_count(request, snapshot), requested_gpu_type(request, snapshot)
    node_share = held_node_share(
        snapshot,
        request.partition,
        gpu_type,
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
    )
    fields = {
        "gpus": count,
        "nodes": request.nodes if request.nodes > 1 else None,
        "batch": request.batch,
        "epochs": request.epochs,
        "node_share": node_share,
    }
    plan = Synchronous.model_validate({k: v for k, v in fields.items() if v is not None})
    hardware = HardwareQuery(partition=request.partition, gpu_type=gpu_type, count=count)
    return PredictionRequest(workload=request.workload, hardware=hardware, plan=plan)


def find_workload(
    context: ServiceContext, caller: Caller, workload: str | Workload, samples: int | None = None
) -> Workload:
    """The workload of a request: in full, or a bundled one or one of the user by its name."""
    if isinstance(workload, str):
        name = workload.strip().lower().replace(" ", "-")
        if name in library.names("workloads"):
            workload = library.workload(name)
        elif row := context.store.newest(WorkloadRow, caller.name, name=name):
            workload = Workload.model_validate(row.body)
        else:
            # Never library.workload(name) with a user's text: it would open files.
            hint = "GET workloads lists yours and the bundled ones"
            raise MissingError(f"no workload {workload!r}", hint)
    check_workload(workload)
    return workload if samples is None else with_samples(workload, samples)


def with_samples(workload: Workload, samples: int) -> Workload:
    """The workload with another number of samples in its data set."""
    dataset = workload.dataset.model_copy(update={"samples": samples})
    return workload.model_copy(update={"dataset": dataset})


def find_hardware(context: ServiceContext, query: HardwareQuery) -> tuple[Cluster, int]:
    """The hardware, and how many of its GPUs the request names."""
    count = gpu_count(query)
    if query.partition is not None:
        snapshot = context.cluster.snapshot()
        names = context.config.service.hardware
        return hardware_of(snapshot, query.partition, query.gpu_type, names), count
    gpus = query.gpus or ""
    return library.cluster_of(gpus, node_name=query.node, network=query.network), count


def gpu_count(query: HardwareQuery) -> int:
    """How many GPUs the request names."""
    if query.partition is not None:
        return query.count
    count, _ = library.parse_gpus(query.gpus or "")
    if count > MAX_GPUS:
        raise InputError(f"{count} GPUs", f"at most {MAX_GPUS}")
    return count


def with_count(plan: BasePlan, count: int) -> BasePlan:
    """The plan on `count` GPUs, unless it names a number itself."""
    if "gpus" in plan.model_fields_set:
        return plan
    return type(plan).model_validate({**plan.model_dump(exclude_unset=True), "gpus": count})


def find_calibration(
    context: ServiceContext, caller: Caller, workload: str, gpu: str, row_id: str | None
) -> tuple[Calibration, tuple[str, ...]]:
    """The calibration with this id, or the user's newest for this workload and GPU; `none` and no
    calibration mean the data sheet. Also returns notes on the choice."""
    if row_id == "none":
        return DATA_SHEET, ()
    if row_id is not None:
        row = context.store.visible(CalibrationRow, caller, row_id)
        if row.gpu != gpu:
            raise InputError(f"calibration {row_id} is for {row.gpu}, not {gpu}", "leave it out")
        return row.calibration, ()
    try:
        return context.newest_calibration(caller.name, workload, gpu) or DATA_SHEET, ()
    except SQLAlchemyError:
        return DATA_SHEET, ("the database does not answer, so calibrations could not be used",)
