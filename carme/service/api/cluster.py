"""`cluster` and `advice`: what is free now, and what to request."""

from __future__ import annotations

import time

from carme.errors import CarmeError, InputError
from carme.predict.advice import QueueWait, RequestAdvice, placement_notes, suggestions
from carme.predict.cluster_hardware import held_node_share, requested_gpu_type, worker_count
from carme.predict.prediction import Prediction
from carme.requests.placement import is_at_once, outlook
from carme.requests.resource_request import ADVICE_VIEW_SECONDS, GIB, AdviceRequest
from carme.requests.slurm_user import SlurmUser
from carme.service.api.predictions import prediction_for
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import (
    ClusterAnswer,
    GpuCount,
    HardwareQuery,
    PartitionItem,
    PredictionRequest,
)
from carme.simulator.plans import Synchronous
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of
from carme.view.client import ViewClient

api = Api()


@api.endpoint("GET", "/cluster")
def get_cluster() -> ClusterAnswer:
    """The cluster now, in counts."""
    context = current_context()
    snapshot, settings = context.cluster.snapshot(), context.config.cluster
    open_nodes = sum(node.open for node in snapshot.nodes)
    return ClusterAnswer(
        name=settings.name,
        title=settings.title,
        taken_at=snapshot.taken_at,
        controller=snapshot.controller,
        error=snapshot.error,
        partitions=tuple(_partition(snapshot, p) for p in snapshot.partitions if not p.hidden),
        nodes_open=open_nodes,
        nodes_closed=len(snapshot.nodes) - open_nodes,
    )


def _partition(snapshot: Snapshot, partition: Partition) -> PartitionItem:
    name = partition.name
    nodes, load = snapshot.nodes_in(name), snapshot.load.get(name)
    free, block = snapshot.gpus_free(name), snapshot.largest_free_block(name)
    return PartitionItem(
        name=name,
        up=partition.up,
        max_seconds=partition.max_seconds,
        gpus=tuple(
            GpuCount(type=k, total=n, free=free.get(k, 0), largest_block=block.get(k, 0))
            for k, n in sorted(snapshot.gpus_total(name).items())
        ),
        cpus_free=sum(node.cpus_free for node in nodes),
        cpus_total=sum(node.cpus for node in nodes),
        waiting=load.waiting if load else 0,
        running=load.running if load else 0,
    )


@api.endpoint("POST", "/advice")
def make_advice(caller: Caller, body: AdviceRequest) -> RequestAdvice:
    """When a request would start, what the workload would take, and what would be better.

    The rules are those of the spawn form.
    """
    context = current_context()
    snapshot = context.cluster.snapshot()
    if snapshot.partition(body.partition) is None:
        names = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        raise InputError(f"no partition {body.partition!r}", f"there are {names}")
    # A late answer is no use to this request; the view caches it for the next one.
    view = ViewClient(context.config.view.socket, ADVICE_VIEW_SECONDS)
    user = _slurm_user(view, caller.name)
    wait = _wait(context, view, body, snapshot, user)
    if not body.workload:
        return RequestAdvice(wait=wait, prediction=None, suggestions=())
    if not body.gpus and snapshot.gpus_total(body.partition):
        note = "no GPU is requested; choose at least one to see what this workload takes"
        return RequestAdvice(wait=wait, prediction=None, suggestions=(), notes=(note,))

    def predict_other(other: AdviceRequest) -> Prediction:
        return prediction_for(context, caller, _prediction_request(other, snapshot), detail=False)

    prediction = prediction_for(context, caller, _prediction_request(body, snapshot))
    max_nodes = context.config.session.max_nodes
    better = suggestions(body, snapshot, prediction, predict_other, user, time.time(), max_nodes)
    return RequestAdvice(
        wait=wait,
        prediction=prediction,
        suggestions=tuple(better),
        notes=placement_notes(body, prediction),
    )


def _slurm_user(view: ViewClient, name: str) -> SlurmUser:
    """The caller with groups and, if the view answers in time, accounts and QoS."""
    try:
        rights = view.rights(name)
    except CarmeError:
        rights = None
    return SlurmUser(name, frozenset(groups_of(name)), rights)


def _prediction_request(request: AdviceRequest, snapshot: Snapshot) -> PredictionRequest:
    count, gpu_type = worker_count(request, snapshot), requested_gpu_type(request, snapshot)
    node_share = held_node_share(
        snapshot,
        request.partition,
        gpu_type,
        cpus=request.cpus,
        memory_bytes=request.memory_gb * GIB,
    )
    fields = {
        "gpus": count,
        "batch": request.batch,
        "epochs": request.epochs,
        "node_share": node_share,
    }
    plan = Synchronous.model_validate({k: v for k, v in fields.items() if v is not None})
    hardware = HardwareQuery(partition=request.partition, gpu_type=gpu_type, count=count)
    return PredictionRequest(workload=request.workload, hardware=hardware, plan=plan)


def _wait(
    context: ServiceContext,
    view: ViewClient,
    request: AdviceRequest,
    snapshot: Snapshot,
    user: SlurmUser,
) -> QueueWait:
    if snapshot.controller == "away":
        return QueueWait(starts_now=False, words="Slurm does not answer now")
    now = time.time()
    result = outlook(request, snapshot, user, now, context.config.session.max_nodes)
    if result.problems:
        text = AdviceRequest.summary(result.problems)
        return QueueWait(starts_now=False, words=f"would be refused: {text}")
    if result.starts_now:
        return QueueWait(starts_now=True, words="can start now")
    if result.held:
        return QueueWait(starts_now=False, words=f"would wait. {result.held}")
    if result.starts_at:
        text = "would wait until the reservation begins"
        return QueueWait(starts_now=False, expected_at=result.starts_at, words=text)
    try:
        expected = view.expected_start(request.resources())
    except InputError as error:
        return QueueWait(starts_now=False, words=f"would be refused: {error.message}")
    except CarmeError:
        # The view asks Slurm at most six times a minute for all users: no answer is no failure.
        return QueueWait(starts_now=False, words="would wait; when it starts is not known")
    if is_at_once(expected.starts_at, now):
        return QueueWait(starts_now=True, words="can start now")
    return QueueWait(
        starts_now=False,
        expected_at=expected.starts_at,
        words="would wait; Slurm's estimate of the start is often wrong",
    )
