"""`cluster` and `advice`: what is free now, and what to ask for."""

from __future__ import annotations

import time

from carme.errors import CarmeError, InputError
from carme.predict.advice import QueueWait, RequestAdvice, placement_notes, suggestions
from carme.predict.cluster_hardware import held_node_share
from carme.predict.prediction import Prediction
from carme.requests.placement import is_at_once, outlook
from carme.requests.problems import summary
from carme.requests.resource_request import ADVICE_VIEW_SECONDS, GIB, AdviceRequest
from carme.requests.slurm_user import SlurmUser
from carme.service.api.predictions import prediction_for
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.cluster import ClusterAnswer, GpuCount, PartitionItem
from carme.service.models.predictions import PredictionRequest
from carme.service.models.requests import HardwareQuery
from carme.simulator.plans import Synchronous
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of
from carme.view.client import ViewClient


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint("GET", "/cluster", answer=ClusterAnswer)
    def get_cluster(who: Caller) -> ClusterAnswer:  # noqa: ARG001
        """The cluster now, in counts."""
        here = current_context()
        return overview(here, here.cluster.snapshot())

    @api.endpoint("POST", "/advice", body=AdviceRequest, answer=RequestAdvice)
    def make_advice(who: Caller, body: AdviceRequest) -> RequestAdvice:
        """When a request would start, what the workload would take, and what would be better."""
        return advise(current_context(), who, body)


def overview(here: ServiceContext, snapshot: Snapshot) -> ClusterAnswer:
    """Counts of a snapshot."""
    opened = sum(node.open for node in snapshot.nodes)
    return ClusterAnswer(
        name=here.config.cluster.name,
        title=here.config.cluster.title,
        taken_at=snapshot.taken_at,
        controller=snapshot.controller,
        error=snapshot.error,
        partitions=tuple(_partition(snapshot, p.name) for p in snapshot.partitions if not p.hidden),
        nodes_open=opened,
        nodes_closed=len(snapshot.nodes) - opened,
    )


def _partition(snapshot: Snapshot, name: str) -> PartitionItem:
    partition, nodes = snapshot.partition(name), snapshot.nodes_in(name)
    free, block = snapshot.gpus_free(name), snapshot.largest_free_block(name)
    load = snapshot.load.get(name)
    return PartitionItem(
        name=name,
        up=bool(partition and partition.up),
        max_seconds=partition.max_seconds if partition else None,
        gpus=tuple(
            GpuCount(type=k, total=n, free=free.get(k, 0), largest_block=block.get(k, 0))
            for k, n in sorted(snapshot.gpus_total(name).items())
        ),
        cpus_free=sum(node.cpus_free for node in nodes),
        cpus_total=sum(node.cpus for node in nodes),
        waiting=load.waiting if load else 0,
        running=load.running if load else 0,
    )


def advise(here: ServiceContext, who: Caller, request: AdviceRequest) -> RequestAdvice:
    """The advice for a request of the caller, by the same rules as the form."""
    snapshot = here.cluster.snapshot()
    if snapshot.partition(request.partition) is None:
        names = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        raise InputError(f"no partition {request.partition!r}", f"there are {names}")
    # The view has its answers at once or not in time. It keeps a late one for the next question.
    view = ViewClient(here.config.view.socket, ADVICE_VIEW_SECONDS)
    user = _slurm_user(view, who.name)
    wait = _wait(here, view, request, snapshot, user)
    if not request.workload:
        return RequestAdvice(wait=wait, prediction=None, suggestions=())
    if not request.gpus and snapshot.gpus_total(request.partition):
        note = "no GPU is asked for; choose at least one to see what this workload takes"
        return RequestAdvice(wait=wait, prediction=None, suggestions=(), notes=(note,))

    def predict_other(other: AdviceRequest) -> Prediction:
        return prediction_for(here, who, _prediction_request(other, snapshot), detail=False)

    prediction = prediction_for(here, who, _prediction_request(request, snapshot))
    better = suggestions(request, snapshot, prediction, predict_other, user, time.time())
    return RequestAdvice(
        wait=wait,
        prediction=prediction,
        suggestions=tuple(better),
        notes=placement_notes(request, prediction),
    )


def _slurm_user(view: ViewClient, name: str) -> SlurmUser:
    """The caller with groups and, if the view answers in time, accounts and QoS."""
    try:
        rights = view.rights(name)
    except CarmeError:
        rights = None
    return SlurmUser(name, frozenset(groups_of(name)), rights)


def _prediction_request(request: AdviceRequest, snapshot: Snapshot) -> PredictionRequest:
    count = request.nodes * max(request.gpus, 1)
    node_share = held_node_share(
        snapshot,
        request.partition,
        request.gpu_type,
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
    hardware = HardwareQuery(
        partition=request.partition, gpu_type=request.gpu_type if request.gpus else "", count=count
    )
    return PredictionRequest(workload=request.workload, hardware=hardware, plan=plan)


def _wait(
    here: ServiceContext,
    view: ViewClient,
    request: AdviceRequest,
    snapshot: Snapshot,
    user: SlurmUser,
) -> QueueWait:
    if snapshot.controller == "away":
        return QueueWait(starts_now=False, words="Slurm does not answer now")
    now = time.time()
    result = outlook(request, snapshot, user, now, here.config.session.max_nodes)
    if result.problems:
        text = summary(result.problems, AdviceRequest)
        return QueueWait(starts_now=False, words=f"would be refused: {text}")
    if result.starts_now:
        return QueueWait(starts_now=True, words="can start now")
    if result.held:
        return QueueWait(starts_now=False, words=f"would wait. {result.held}")
    if result.starts_at:
        words = "would wait until the reservation begins"
        return QueueWait(starts_now=False, expected_at=result.starts_at, words=words)
    try:
        expected = view.expected_start(request.resources())
    except InputError as error:
        return QueueWait(starts_now=False, words=f"would be refused: {error.message}")
    except CarmeError:
        # Slurm is asked at most six times a minute for everybody: no answer is no failure.
        return QueueWait(starts_now=False, words="would wait; when it starts is not known")
    if is_at_once(expected.starts_at, now):
        return QueueWait(starts_now=True, words="can start now")
    return QueueWait(
        starts_now=False,
        expected_at=expected.starts_at,
        words="would wait; Slurm's guess of the start often errs",
    )
