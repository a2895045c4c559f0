"""`workloads` and `hardware`: what can be asked about; workloads of one's own are kept."""

from __future__ import annotations

from flask import request
from sqlalchemy.exc import IntegrityError

from carme import library
from carme.errors import CarmeError, InputError, MissingError
from carme.predict.cluster_hardware import known_gpu
from carme.predict.estimates import FrozenModel
from carme.service.context import ServiceContext, current_context
from carme.service.cost_limits import check_workload
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.catalogue import (
    HardwareItem,
    HardwareList,
    WorkloadAnswer,
    WorkloadItem,
    WorkloadPage,
)
from carme.service.models.requests import PageQuery, Word
from carme.service.store import WorkloadRow, new_id, next_cursor, now
from carme.service.uploads import read_upload
from carme.simulator.workload import Workload

MOST_WORKLOADS = 200
"""Of one user."""


class Upload(FrozenModel):
    """Where an uploaded file goes."""

    name: Word | None = None
    """What to call it; the graph's own name if unset."""
    samples: int | None = None


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint("GET", "/workloads", query=PageQuery, answer=WorkloadPage)
    def list_workloads(who: Caller, query: PageQuery) -> WorkloadPage:
        """Own workloads, the newest first; on the first page the bundled ones follow."""
        rows = current_context().store.page(WorkloadRow, who.name, query.limit, query.cursor)
        items = [_item(Workload.model_validate(row.body), True, row.user) for row in rows]
        more = next_cursor(rows, query.limit)
        if query.cursor is None:
            items += [_item(library.workload(n), False) for n in library.names("workloads")]
        return WorkloadPage(items=tuple(items), next=more)

    @api.endpoint("POST", "/workloads", body=Workload, answer=WorkloadAnswer, status=201)
    def add_workload(who: Caller, body: Workload) -> WorkloadAnswer:
        """Keep a workload of one's own; one of the same name is replaced."""
        return keep(current_context(), who, body)

    @api.endpoint(
        "POST", "/workloads/onnx", query=Upload, answer=WorkloadAnswer, status=201, upload=True
    )
    def add_onnx(who: Caller, query: Upload) -> WorkloadAnswer:
        """Keep the workload in an ONNX file, sent as the body.

        Only the graph is read: weights are not loaded, and external data files never opened.
        """
        workload = read_upload(current_context().apart, request.get_data(), query.name or "")
        if query.samples is not None:
            if not 1 <= query.samples <= 10**13:
                raise InputError("samples must be from 1 to 10^13")
            dataset = workload.dataset.model_copy(update={"samples": query.samples})
            workload = workload.model_copy(update={"dataset": dataset})
        return keep(current_context(), who, workload)

    @api.endpoint("GET", "/workloads/<string:name>", answer=WorkloadAnswer)
    def get_workload(who: Caller, name: str) -> WorkloadAnswer:
        """A workload in full: one's own, or a bundled one."""
        row = _own(current_context(), who, name)
        if row:
            return WorkloadAnswer(own=True, workload=Workload.model_validate(row.body))
        if name in library.names("workloads"):
            return WorkloadAnswer(own=False, workload=library.workload(name))
        raise MissingError(f"no workload {name[:64]!r}", "GET workloads lists them")

    @api.endpoint("DELETE", "/workloads/<string:name>", status=204)
    def delete_workload(who: Caller, name: str) -> None:
        """Forget a workload of one's own."""
        context = current_context()
        row = _own(context, who, name)
        if row is None:
            raise MissingError(f"you keep no workload {name[:64]!r}", "GET workloads lists them")
        context.store.remove(row)

    @api.endpoint("GET", "/hardware", answer=HardwareList)
    def list_hardware(who: Caller) -> HardwareList:  # noqa: ARG001
        """GPUs (and CPUs) with known figures, and which of them this cluster has."""
        context = current_context()
        names, notes = _here(context)
        items = []
        for name in library.names("gpus"):
            gpu = library.gpu(name)
            items.append(
                HardwareItem(
                    name=name, title=gpu.title, kind=gpu.kind, memory_bytes=gpu.memory_bytes,
                    peak_flops=dict(gpu.peak_flops), idle_watts=gpu.power.idle_watts,
                    limit_watts=gpu.power.limit_watts,
                    here=tuple(kind for kind, known in names.items() if known == name),
                )
            )  # fmt: skip
        return HardwareList(items=tuple(items), notes=notes)


def keep(context: ServiceContext, who: Caller, workload: Workload) -> WorkloadAnswer:
    """Store it under its name."""
    if workload.name in library.names("workloads"):
        raise InputError(
            f"{workload.name} is the name of a bundled workload", "choose another name"
        )
    check_workload(workload)
    row = _own(context, who, workload.name)
    if row is None:
        count = len(context.store.page(WorkloadRow, who.name, MOST_WORKLOADS, None))
        if count >= MOST_WORKLOADS:
            raise InputError(f"you keep {count} workloads already", "delete one first")
    else:
        context.store.remove(row)
    try:
        context.store.add(
            WorkloadRow(
                id=new_id(), user=who.name, name=workload.name,
                body=workload.model_dump(mode="json"), created_at=now(),
            )
        )  # fmt: skip
    except IntegrityError:
        raise InputError(
            f"{workload.name} is being stored by another request", "try again"
        ) from None
    return WorkloadAnswer(own=True, workload=workload)


def _own(context: ServiceContext, who: Caller, name: str) -> WorkloadRow | None:
    rows = context.store.page(WorkloadRow, who.name, 1, None, name=name)
    return rows[0] if rows else None


def _item(workload: Workload, own: bool, user: str | None = None) -> WorkloadItem:
    return WorkloadItem(
        name=workload.name, title=workload.title or workload.name, own=own, user=user,
        parameters=workload.parameter_count, forward_flops=workload.forward_flops,
        samples=workload.dataset.samples, batch=workload.batch,
    )  # fmt: skip


def _here(context: ServiceContext) -> tuple[dict[str, str], tuple[str, ...]]:
    """Slurm's GPU types by known names; what could not be told."""
    try:
        kinds = context.cluster.snapshot().gpus_total()
    except CarmeError as error:
        return {}, (f"which of them are here is not known now: {error.message}",)
    names: dict[str, str] = {}
    notes = []
    for kind in kinds:
        try:
            names[kind] = known_gpu(kind, context.config.service.hardware).name
        except MissingError as error:
            notes.append(str(error))
    return names, tuple(notes)
