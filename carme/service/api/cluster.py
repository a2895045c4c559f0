"""`cluster` and `advice`: what is free now, and what to request."""

from __future__ import annotations

import time

from carme.errors import CarmeError, InputError
from carme.predict.advice import QueueWait, RequestAdvice, placement_notes, suggestions
from carme.predict.prediction import Prediction
from carme.requests.placement import Outlook, outlook, with_expected_start
from carme.requests.resource_request import ADVICE_VIEW_SECONDS, AdviceRequest, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.service.api.predictions import prediction_for
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import ClusterAnswer, GpuCount, PartitionItem
from carme.service.request_resolution import prediction_request
from carme.slurm.models import ExpectedStart, Partition
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
        taken_at=snapshot.oldest_taken_at,
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
    try:
        request = prediction_request(body, snapshot)
    except InputError as error:
        return RequestAdvice(wait=wait, prediction=None, suggestions=(), notes=(error.message,))

    def predict_other(other: AdviceRequest) -> Prediction:
        return prediction_for(context, caller, prediction_request(other, snapshot), detail=False)

    prediction = prediction_for(context, caller, request)
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


def _wait(
    context: ServiceContext,
    view: ViewClient,
    request: AdviceRequest,
    snapshot: Snapshot,
    user: SlurmUser,
) -> QueueWait:
    resources, now = request.resources(), time.time()
    if user.rights is None:
        # The hub waits longer for the rights, and may know that the user has these.
        resources = resources.model_copy(update={"account": "", "qos": ""})
    result = outlook(resources, snapshot, user, now, context.config.session.max_nodes)
    if is_estimate := result.needs_slurm_estimate:
        result = with_expected_start(result, _expected_start(view, resources, user.name), now)
    words = _wait_words(result, is_estimate)
    if user.rights is None:
        words += " (your accounts and QoS cannot be read now, so their limits are not considered)"
    return QueueWait(starts_now=result.starts_now, expected_at=result.starts_at, words=words)


def _expected_start(
    view: ViewClient, request: ResourceRequest, user: str
) -> ExpectedStart | InputError | None:
    try:
        return view.expected_start(request, user)
    except InputError as error:
        return error
    except CarmeError:
        # The view asks Slurm a few times a minute for each user: no answer is no failure.
        return None


def _wait_words(result: Outlook, is_estimate: bool) -> str:
    if result.problems:
        return f"would be refused: {AdviceRequest.summary(result.problems)}"
    if result.starts_now:
        return "can start now"
    if result.wait_reason:
        return f"would wait. {result.wait_reason}"
    if result.starts_at and is_estimate:
        return "would wait; Slurm's estimate of the start may change"
    if result.starts_at:
        return "would wait until the reservation begins"
    return "would wait; when it starts is not known"
