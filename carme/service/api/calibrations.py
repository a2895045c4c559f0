"""`calibrations`: measured steps to fitted coefficients, kept with their provenance."""

from __future__ import annotations

from carme.errors import InputError
from carme.jobs.models import JobReport
from carme.predict.coefficients import Calibration
from carme.predict.estimates import Spread
from carme.predict.fit import fit
from carme.predict.measurements import TrackedStep, with_watts
from carme.predict.prediction import Prediction
from carme.service.api.jobs import find_job
from carme.service.context import ServiceContext, current_context
from carme.service.cost_limits import check_points
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models.calibrations import CalibrationAnswer, CalibrationPage, CalibrationRequest
from carme.service.models.requests import PageQuery
from carme.service.request_resolution import find_hardware, find_workload
from carme.service.store import CalibrationRow, PredictionRow, new_id, now
from carme.service.stored_rows import StoredRows
from carme.slurm.states import JobState


def register(api: Api) -> None:
    """Add the endpoints."""

    @api.endpoint(
        "POST", "/calibrations", body=CalibrationRequest, answer=CalibrationAnswer, status=201
    )
    def make_calibration(who: Caller, body: CalibrationRequest) -> CalibrationAnswer:
        """Fit the simulator's coefficients to measured steps.

        Predictions of this workload on this hardware use the newest fit from then on.
        """
        context = current_context()
        workload = find_workload(context, who, body.workload)
        cluster, _ = find_hardware(context, body.hardware)
        steps = body.steps or ()
        if body.job_id is not None:
            job = find_job(context, who, body.job_id)
            steps = with_watts(steps or _history(context, job, workload.name), job)
        if not steps:
            raise InputError("no steps", "send steps (batch, gpus, seconds of each) or a job_id")
        check_points(body.plan, workload, {(step.batch, step.gpus) for step in steps})
        calibration = fit(workload, cluster, body.plan, steps)
        if body.steps is None:
            calibration = _as_history(calibration, body.job_id)
        row = CalibrationRow(
            id=new_id(), user=who.name, workload=workload.name, gpu=cluster.node.gpu.name,
            body=calibration.model_dump(mode="json"), created_at=now(),
        )  # fmt: skip
        context.store.add(row)
        context.forget_calibrations()
        return _shown(row)

    @api.endpoint("GET", "/calibrations", query=PageQuery, answer=CalibrationPage)
    def list_calibrations(who: Caller, query: PageQuery) -> CalibrationPage:
        """Own calibrations, the newest first; an admin sees everybody's."""
        items, more = KEPT.page(who, query)
        return CalibrationPage(items=items, next=more)

    @api.endpoint("GET", "/calibrations/<string:calibration_id>", answer=CalibrationAnswer)
    def get_calibration(who: Caller, calibration_id: str) -> CalibrationAnswer:
        """One calibration."""
        return _shown(KEPT.row(who, calibration_id))

    @api.endpoint("DELETE", "/calibrations/<string:calibration_id>", status=204)
    def delete_calibration(who: Caller, calibration_id: str) -> None:
        """Forget a calibration of one's own."""
        KEPT.forget(who, calibration_id)
        current_context().forget_calibrations()


def _history(context: ServiceContext, job: JobReport, workload: str) -> tuple[TrackedStep, ...]:
    """The mean step of a job that ran its declared workload to the end; a session says nothing."""
    if context.store.page(PredictionRow, job.user, 1, None, job_id=job.id, kind="session"):
        raise InputError(
            f"job {job.id} was a session, and its time holds that in which you thought",
            "send the steps you timed, too",
        )
    rows = context.store.page(PredictionRow, job.user, 1, None, job_id=job.id, workload=workload)
    if not rows or job.state != JobState.COMPLETED or not job.elapsed_seconds:
        raise InputError(
            f"job {job.id} did not run {workload} to its end with a stored prediction",
            "send the steps you timed, too",
        )
    prediction = Prediction.model_validate(rows[0].body)
    # What comes before the first step is not theirs, however long the prediction takes it to be.
    before = prediction.time.value - prediction.steps * prediction.step_time.value
    seconds = max(job.elapsed_seconds - before, 0.1 * job.elapsed_seconds) / prediction.steps
    step = TrackedStep(batch=round(prediction.batch), gpus=prediction.gpus, seconds=seconds)
    return (step,) * 3


def _as_history(calibration: Calibration, job_id: int | None) -> Calibration:
    words = f"from the time that job {job_id} took as a whole"
    provenance = calibration.provenance.model_copy(update={"source": "history", "words": words})
    return calibration.model_copy(update={"provenance": provenance, "time": Spread.within(1.25)})


def _shown(row: CalibrationRow) -> CalibrationAnswer:
    return CalibrationAnswer(
        id=row.id, user=row.user, workload=row.workload, gpu=row.gpu,
        created_at=row.created_at, knowledge=row.calibration,
    )  # fmt: skip


KEPT = StoredRows("calibration", CalibrationRow, _shown)
