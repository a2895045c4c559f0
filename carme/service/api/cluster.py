"""`cluster` and `advice`: what is free now, and what to ask for."""

from __future__ import annotations

from carme.errors import CarmeError, InputError
from carme.predict.advice import (
    GIB,
    AdviceRequest,
    QueueWait,
    RequestAdvice,
    placing,
    starts_now,
    suggestions,
)
from carme.predict.cluster_hardware import held_node_share
from carme.predict.prediction import Prediction
from carme.service.api.predictions import prediction_for
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.cluster import ClusterAnswer, GpuCount, PartitionItem
from carme.service.models.predictions import PredictionRequest
from carme.service.models.requests import HardwareQuery
from carme.simulator.plans.plan import Synchronous
from carme.slurm.models import Choice
from carme.slurm.snapshot import Snapshot


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint("GET", "/cluster", answer=ClusterAnswer)
    def get_cluster(who: Caller) -> ClusterAnswer:  # noqa: ARG001
        """The cluster now, in counts."""
        here = current_context()
        return overview(here, here.cluster.snapshot())

    @api.endpoint("POST", "/advice", body=AdviceRequest, answer=RequestAdvice)
    def make_advice(who: Caller, body: AdviceRequest) -> RequestAdvice:
        """When a choice would start, what the workload would take, and what would be better."""
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


def advise(here: ServiceContext, who: Caller, wish: AdviceRequest) -> RequestAdvice:
    """The advice for a wish."""
    snapshot = here.cluster.snapshot()
    if snapshot.partition(wish.partition) is None:
        there = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        raise InputError(f"no partition {wish.partition!r}", f"there are {there}")
    wait = _wait(here, wish, snapshot)
    if not wish.workload:
        return RequestAdvice(wait=wait, prediction=None, suggestions=())
    if not wish.gpus and snapshot.gpus_total(wish.partition):
        note = "no GPU is asked for; choose at least one to see what this workload takes"
        return RequestAdvice(wait=wait, prediction=None, suggestions=(), notes=(note,))

    def ask(other: AdviceRequest) -> Prediction:
        return prediction_for(here, who, _request(other, snapshot), detail=False)

    found = prediction_for(here, who, _request(wish, snapshot))
    return RequestAdvice(
        wait=wait,
        prediction=found,
        suggestions=tuple(suggestions(wish, snapshot, found, ask)),
        notes=placing(wish, found),
    )


def _request(wish: AdviceRequest, snapshot: Snapshot) -> PredictionRequest:
    count = wish.nodes * max(wish.gpus, 1)
    share = held_node_share(
        snapshot,
        wish.partition,
        wish.gpu_type,
        cpus=wish.cpus,
        memory_bytes=wish.memory_gb * GIB,
    )
    fields = {"gpus": count, "batch": wish.batch, "epochs": wish.epochs, "node_share": share}
    plan = Synchronous.model_validate({k: v for k, v in fields.items() if v is not None})
    hardware = HardwareQuery(
        partition=wish.partition, gpu_type=wish.gpu_type if wish.gpus else "", count=count
    )
    return PredictionRequest(workload=wish.workload, hardware=hardware, plan=plan)


def _wait(here: ServiceContext, wish: AdviceRequest, snapshot: Snapshot) -> QueueWait:
    if snapshot.controller == "away":
        return QueueWait(starts_now=False, words="Slurm does not answer now")
    if starts_now(wish, snapshot):
        return QueueWait(starts_now=True, words="can start now")
    try:
        expected = here.cluster.client.expected_start(
            Choice(
                partition=wish.partition,
                nodes=wish.nodes,
                cpus=wish.cpus,
                memory_bytes=wish.memory_gb * GIB,
                gpus=wish.gpus,
                gpu_type=wish.gpu_type,
                limit_seconds=max(60, round(wish.hours * 3600)),
            )
        )
    except InputError as error:
        return QueueWait(starts_now=False, words=f"would be refused: {error.message}")
    except CarmeError:
        # Slurm is asked at most six times a minute for everybody: no answer is no failure.
        return QueueWait(starts_now=False, words="would wait; when it starts is not known")
    return QueueWait(
        starts_now=False,
        expected_at=expected.starts_at,
        words="would wait; Slurm's guess of the start often errs",
    )
