"""`predictions`: what a run takes; kept ones for comparing."""

from __future__ import annotations

from carme.errors import InputError, MissingError
from carme.predict.prediction import Prediction, predict
from carme.service.context import ServiceContext, current_context
from carme.service.cost_limits import check_plan
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.predictions import PredictionAnswer, PredictionPage, PredictionRequest
from carme.service.models.requests import PageQuery
from carme.service.request_resolution import (
    find_hardware,
    find_knowledge,
    find_workload,
    with_count,
)
from carme.service.store import PredictionRow, new_id, now
from carme.service.stored_rows import StoredRows


def prediction_for(
    context: ServiceContext, who: Caller, body: PredictionRequest, *, detail: bool = True
) -> Prediction:
    """The prediction that a request asks for."""
    workload = find_workload(context, who, body.workload, body.samples)
    cluster, count = find_hardware(context, body.hardware)
    plan = with_count(body.plan, count)
    check_plan(plan, workload)
    calibration, notes = find_knowledge(
        context, who, workload.name, cluster.node.gpu.name, body.calibration
    )
    needed = -(-plan.gpus // cluster.node.gpus)
    if needed > cluster.nodes:
        what = f"{cluster.gpus} GPUs" if body.hardware.partition else f"{count} GPUs"
        raise InputError(f"the plan asks for {plan.gpus} GPUs", f"the hardware has {what}")
    prediction = predict(
        workload, cluster, plan, calibration, context.rates, scaling=body.scaling, detail=detail
    )
    return (
        prediction.model_copy(update={"notes": (*prediction.notes, *notes)})
        if notes
        else prediction
    )


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint("POST", "/predictions", body=PredictionRequest, answer=PredictionAnswer)
    def make_prediction(who: Caller, body: PredictionRequest) -> PredictionAnswer:
        """Predict time, energy, power, emissions and cost of a training run.

        Every figure has a 90 % interval; `provenance` says where the coefficients come from.
        """
        context = current_context()
        if body.job_id is not None:
            _own_job(context, who, body.job_id)
        prediction = prediction_for(context, who, body)
        row_id = None
        if body.keep:
            row = PredictionRow(
                id=new_id(), user=who.name, job_id=body.job_id, workload=prediction.workload,
                body=prediction.model_dump(mode="json"), created_at=now(),
                source=prediction.provenance.source, kind="session" if who.via == "hub" else "job",
            )  # fmt: skip
            context.store.add(row)
            row_id = row.id
        return PredictionAnswer(
            prediction=prediction, id=row_id, job_id=body.job_id, created_at=now(), user=who.name
        )

    @api.endpoint("GET", "/predictions", query=PageQuery, answer=PredictionPage)
    def list_predictions(who: Caller, query: PageQuery) -> PredictionPage:
        """Kept predictions, the newest first; an admin sees everybody's."""
        items, more = KEPT.page(who, query)
        return PredictionPage(items=items, next=more)

    @api.endpoint("GET", "/predictions/<string:prediction_id>", answer=PredictionAnswer)
    def get_prediction(who: Caller, prediction_id: str) -> PredictionAnswer:
        """One kept prediction."""
        return KEPT.shown(KEPT.row(who, prediction_id))

    @api.endpoint("DELETE", "/predictions/<string:prediction_id>", status=204)
    def delete_prediction(who: Caller, prediction_id: str) -> None:
        """Forget a kept prediction of one's own."""
        KEPT.forget(who, prediction_id)


def shown(row: PredictionRow) -> PredictionAnswer:
    """A kept prediction as the API answers it."""
    return PredictionAnswer(
        prediction=Prediction.model_validate(row.body), id=row.id, job_id=row.job_id,
        created_at=row.created_at, user=row.user,
    )  # fmt: skip


KEPT = StoredRows("prediction", PredictionRow, shown)


def _own_job(context: ServiceContext, who: Caller, job_id: int) -> None:
    """A prediction may be bound to a job of one's own only; the hub vouches for new ones."""
    if who.via == "hub":
        return
    job = context.cluster.snapshot().job(job_id)
    if job is None or job.user != who.name:
        raise MissingError(f"you have no job {job_id} in the queue", "leave job_id out")
