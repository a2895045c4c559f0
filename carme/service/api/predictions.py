"""`predictions`: what a run takes. Stored predictions are compared with their job later."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from carme.errors import InputError, MissingError
from carme.predict.prediction import Prediction, predict
from carme.predict.simulation_limits import check_prediction
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import (
    PageQuery,
    PredictionAnswer,
    PredictionPage,
    PredictionRequest,
    SessionPredictionRequest,
)
from carme.service.request_resolution import (
    find_calibration,
    find_hardware,
    find_workload,
    prediction_request,
    with_count,
)
from carme.service.store import PredictionRow

QUICK_MILLISECONDS = 30.0
"""Longer simulations run in another process: in this one they would delay all answers."""
api = Api()


def prediction_for(
    context: ServiceContext, caller: Caller, body: PredictionRequest, *, detail: bool = True
) -> Prediction:
    """The prediction that a request asks for."""
    workload = find_workload(context, caller, body.workload, body.samples)
    cluster, count = find_hardware(context, body.hardware)
    plan = with_count(body.plan, count)
    milliseconds = check_prediction(plan, workload, scaling=body.scaling, detail=detail)
    calibration, notes = find_calibration(
        context, caller, workload.name, cluster.node.gpu.name, body.calibration
    )
    nodes = -(-plan.gpus // cluster.node.gpus)
    if nodes > cluster.nodes:
        available = cluster.gpus if body.hardware.partition else count
        raise InputError(
            f"the plan asks for {plan.gpus} GPUs", f"the hardware has {available} GPUs"
        )
    arguments = (workload, cluster, plan, calibration, context.rates)
    call = partial(predict, *arguments, scaling=body.scaling, detail=detail)
    if milliseconds <= QUICK_MILLISECONDS:
        with context.calculations.turn(caller.name):
            prediction = call()
    else:
        prediction = context.tasks.call(caller.name, call)
    return prediction.model_copy(update={"notes": (*prediction.notes, *notes)})


@api.endpoint("POST", "/predictions")
def make_prediction(caller: Caller, body: PredictionRequest) -> PredictionAnswer:
    """Predict time, energy, power, emissions and cost of a training run.

    Every figure has a 90 % interval; `provenance` says where the coefficients come from.
    """
    context = current_context()
    _check_job(context, caller, body.job_id)
    prediction = prediction_for(context, caller, body)
    if body.keep:
        return _store(context, caller, prediction, body.job_id)
    return PredictionAnswer(
        prediction=prediction, job_id=body.job_id, created_at=time.time(), user=caller.name
    )


@api.endpoint("POST", "/session-predictions")
def make_session_prediction(caller: Caller, body: SessionPredictionRequest) -> PredictionAnswer:
    """Store the prediction that `advice` gives for a session, to compare it with the job later."""
    context = current_context()
    _check_job(context, caller, body.job_id)
    request = prediction_request(body, context.cluster.snapshot())
    return _store(context, caller, prediction_for(context, caller, request), body.job_id)


def _check_job(context: ServiceContext, caller: Caller, job_id: int | None) -> None:
    """A prediction may name a job of its user only, also if the hub stores it: the hub has the
    number of a session's job from a program of the user."""
    if job_id is None:
        return
    job = context.cluster.snapshot().job(job_id)
    if job is None:
        # The view may have seen it since.
        with suppress(MissingError):
            job = context.cluster.client.job(job_id)
    if job is None or job.user != caller.name:
        raise MissingError(
            f"you have no job {job_id} in the queue", "name a waiting or running job of yours"
        )


def _store(
    context: ServiceContext, caller: Caller, prediction: Prediction, job_id: int | None
) -> PredictionAnswer:
    row = PredictionRow(
        user=caller.name, job_id=job_id, workload=prediction.workload,
        body=prediction.model_dump(mode="json"), source=prediction.provenance.source,
        kind="session" if caller.via == "hub" else "job",
    )  # fmt: skip
    context.store.add(row, most=context.config.service.stored_predictions)
    return answer_of(row)


@api.endpoint("GET", "/predictions")
def list_predictions(caller: Caller, query: PageQuery) -> PredictionPage:
    """Stored predictions, the newest first; an admin sees those of all users."""
    rows, next_page = current_context().store.visible_page(PredictionRow, caller, query)
    return PredictionPage(items=tuple(map(answer_of, rows)), next=next_page)


@api.endpoint("GET", "/predictions/<string:prediction_id>")
def get_prediction(caller: Caller, prediction_id: str) -> PredictionAnswer:
    """One stored prediction."""
    return answer_of(current_context().store.visible(PredictionRow, caller, prediction_id))


@api.endpoint("DELETE", "/predictions/<string:prediction_id>")
def delete_prediction(caller: Caller, prediction_id: str) -> None:
    """Delete a stored prediction of your own."""
    current_context().store.remove_own(PredictionRow, caller, prediction_id)


def answer_of(row: PredictionRow) -> PredictionAnswer:
    """A stored prediction in the form of the API."""
    return PredictionAnswer(
        prediction=Prediction.model_validate(row.body), id=row.id, job_id=row.job_id,
        created_at=row.created_at, user=row.user,
    )  # fmt: skip
