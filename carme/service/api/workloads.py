"""`workloads`: the bundled ones, and those that users add."""

from __future__ import annotations

from flask import request
from sqlalchemy.exc import IntegrityError

from carme import library
from carme.errors import InputError, MissingError
from carme.library.huggingface import from_config
from carme.predict.simulation_limits import check_workload
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import (
    HuggingFaceConfig,
    OnnxQuery,
    PageQuery,
    WorkloadAnswer,
    WorkloadItem,
    WorkloadPage,
)
from carme.service.request_resolution import with_samples
from carme.service.store import WorkloadRow, next_cursor
from carme.service.uploads import read_upload
from carme.simulator.workload import Workload

api = Api()


@api.endpoint("GET", "/workloads")
def list_workloads(caller: Caller, query: PageQuery) -> WorkloadPage:
    """Your workloads, the newest first; on the first page the bundled ones follow."""
    rows = current_context().store.page(WorkloadRow, caller.name, query.limit, query.cursor)
    items = [_item(Workload.model_validate(row.body), row.user) for row in rows]
    if query.cursor is None:
        items += [_item(library.workload(name)) for name in library.names("workloads")]
    return WorkloadPage(items=tuple(items), next=next_cursor(rows, query.limit))


@api.endpoint("POST", "/workloads", status=201)
def add_workload(caller: Caller, body: Workload) -> WorkloadAnswer:
    """Store a workload of your own; it replaces one of the same name."""
    return store_workload(current_context(), caller, body)


@api.endpoint("POST", "/workloads/onnx", status=201, upload=True)
def add_onnx(caller: Caller, query: OnnxQuery) -> WorkloadAnswer:
    """Store the workload in an ONNX file, sent as the body.

    Only the graph is read: weights are not loaded, and external data files never opened. The
    answer's `warnings` name what the workload leaves out or assumes, with its share.
    """
    context = current_context()
    sizes = [text.strip() for text in query.dimensions.split(",") if text.strip()]
    dimensions = library.parse_dimensions(sizes)
    with context.sandboxes.process(caller.name) as sandbox:
        # Read only now: a file may be large, and one of each user is in memory.
        workload = read_upload(sandbox, request.get_data(), query.name or "", dimensions)
    if query.samples is not None:
        if not 1 <= query.samples <= 10**13:
            raise InputError("samples must be from 1 to 10^13")
        workload = with_samples(workload, query.samples)
    return store_workload(context, caller, workload)


@api.endpoint("POST", "/workloads/huggingface", status=201)
def add_config(caller: Caller, body: HuggingFaceConfig) -> WorkloadAnswer:
    """Store the transformer that a Hugging Face `config.json` describes.

    The answer's `warnings` name what the workload leaves out or assumes, with its share.
    """
    dimensions = {"sequence": body.sequence} if body.sequence else {}
    workload = from_config(body.config, body.name, "config", dimensions)
    workload = workload.model_copy(update={"sources": {"transformer": "uploaded config.json"}})
    if body.samples is not None:
        workload = with_samples(workload, body.samples)
    return store_workload(current_context(), caller, workload)


@api.endpoint("GET", "/workloads/<string:name>")
def get_workload(caller: Caller, name: str) -> WorkloadAnswer:
    """A workload in full: your own, or a bundled one."""
    row = current_context().store.newest(WorkloadRow, caller.name, name=name)
    if row:
        return WorkloadAnswer(own=True, workload=Workload.model_validate(row.body))
    if name in library.names("workloads"):
        return WorkloadAnswer(own=False, workload=library.workload(name))
    raise MissingError(f"no workload {name[:64]!r}", "GET workloads lists them")


@api.endpoint("DELETE", "/workloads/<string:name>")
def delete_workload(caller: Caller, name: str) -> None:
    """Delete a workload of your own."""
    store = current_context().store
    row = store.newest(WorkloadRow, caller.name, name=name)
    if row is None:
        raise MissingError(f"you have no workload {name[:64]!r}", "GET workloads lists them")
    store.remove(row)


def store_workload(context: ServiceContext, caller: Caller, workload: Workload) -> WorkloadAnswer:
    """Store the workload under its name."""
    name = workload.name
    if name in library.names("workloads"):
        raise InputError(f"{name} is the name of a bundled workload", "choose another name")
    check_workload(workload)
    most_bytes = context.config.service.most_body_bytes
    size = len(workload.model_dump_json())
    if size > most_bytes:
        raise InputError(
            f"the workload has {size:,} bytes, above {most_bytes:,}", "merge equal layers"
        )
    old = context.store.newest(WorkloadRow, caller.name, name=name)
    if old is None:
        most = context.config.service.stored_workloads
        count = len(context.store.page(WorkloadRow, caller.name, most, None))
        if count >= most:
            raise InputError(f"you have stored {count} workloads already", "delete one first")
    try:
        row = WorkloadRow(user=caller.name, name=name, body=workload.model_dump(mode="json"))
        context.store.add(row, replaces=old)
    except IntegrityError:
        raise InputError(f"{name} is being stored by another request", "try again") from None
    return WorkloadAnswer(own=True, workload=workload)


def _item(workload: Workload, user: str | None = None) -> WorkloadItem:
    return WorkloadItem(
        name=workload.name, title=workload.title or workload.name, own=user is not None, user=user,
        parameters=workload.parameter_count, forward_flops=workload.forward_flops,
        samples=workload.dataset.samples, batch=workload.batch,
    )  # fmt: skip
