"""`calibrations`: coefficients fitted to measured steps, stored with their provenance."""

from __future__ import annotations

from carme.errors import InputError
from carme.jobs.models import JobReport
from carme.predict.coefficients import Calibration
from carme.predict.estimates import Spread
from carme.predict.fit import fit
from carme.predict.measurements import TimedStep, with_watts
from carme.predict.prediction import Prediction
from carme.predict.simulation_limits import check_points
from carme.service.api.jobs import find_job
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.hub_client import Caller
from carme.service.models import CalibrationAnswer, CalibrationPage, CalibrationRequest, PageQuery
from carme.service.request_resolution import find_hardware, find_workload
from carme.service.store import CalibrationRow, PredictionRow
from carme.slurm.states import JobState

api = Api()


@api.endpoint("POST", "/calibrations", status=201)
def make_calibration(caller: Caller, body: CalibrationRequest) -> CalibrationAnswer:
    """Fit the simulator's coefficients to measured steps.

    Later predictions of this workload on this hardware use the newest calibration.
    """
    context = current_context()
    workload = find_workload(context, caller, body.workload)
    cluster, _ = find_hardware(context, body.hardware)
    steps = body.steps or ()
    if body.job_id is not None:
        job = find_job(context, caller, body.job_id)
        steps = with_watts(steps or _steps_of(context, job, workload.name), job)
    if not steps:
        raise InputError("no steps", "send steps (batch, gpus, seconds of each) or a job_id")
    check_points(body.plan, workload, {(step.batch, step.gpus) for step in steps})
    # In another process: it takes seconds, in which this one would answer nobody.
    calibration = context.tasks.call(caller.name, fit, workload, cluster, body.plan, steps)
    if body.steps is None:
        calibration = _from_history(calibration, body.job_id)
    row = CalibrationRow(
        user=caller.name, workload=workload.name, gpu=cluster.node.gpu.name,
        body=calibration.model_dump(mode="json"),
    )  # fmt: skip
    most = context.config.service.stored_calibrations
    if not context.store.add_calibration(row, most):
        raise InputError(
            f"you have stored calibrations of {most} workloads and GPUs already", "delete one first"
        )
    context.forget_calibrations()
    return _answer_of(row)


@api.endpoint("GET", "/calibrations")
def list_calibrations(caller: Caller, query: PageQuery) -> CalibrationPage:
    """Your calibrations, the newest first; an admin sees those of all users."""
    rows, next_page = current_context().store.visible_page(CalibrationRow, caller, query)
    return CalibrationPage(items=tuple(map(_answer_of, rows)), next=next_page)


@api.endpoint("GET", "/calibrations/<string:calibration_id>")
def get_calibration(caller: Caller, calibration_id: str) -> CalibrationAnswer:
    """One calibration."""
    return _answer_of(current_context().store.visible(CalibrationRow, caller, calibration_id))


@api.endpoint("DELETE", "/calibrations/<string:calibration_id>")
def delete_calibration(caller: Caller, calibration_id: str) -> None:
    """Delete a calibration of your own."""
    current_context().store.remove_own(CalibrationRow, caller, calibration_id)
    current_context().forget_calibrations()


def _steps_of(context: ServiceContext, job: JobReport, workload: str) -> tuple[TimedStep, ...]:
    """The mean step of a job that ran its declared workload to the end; InputError for others."""
    hint = "also send the steps that you timed"
    if context.store.newest(PredictionRow, job.user, job_id=job.id, kind="session"):
        raise InputError(
            f"job {job.id} was a session, and its time includes that in which you did nothing", hint
        )
    row = context.store.newest(PredictionRow, job.user, job_id=job.id, workload=workload)
    if not row or job.state != JobState.COMPLETED or not job.elapsed_seconds:
        raise InputError(
            f"job {job.id} did not run {workload} to its end with a stored prediction", hint
        )
    prediction = Prediction.model_validate(row.body)
    # The time before the first step, as predicted, does not belong to the steps.
    before = prediction.time.value - prediction.steps * prediction.step_time.value
    seconds = max(job.elapsed_seconds - before, 0.1 * job.elapsed_seconds) / prediction.steps
    step = TimedStep(batch=round(prediction.batch), gpus=prediction.gpus, seconds=seconds)
    return (step,)


def _from_history(calibration: Calibration, job_id: int | None) -> Calibration:
    words = f"from the time that job {job_id} took as a whole"
    provenance = calibration.provenance.model_copy(update={"source": "history", "words": words})
    return calibration.model_copy(update={"provenance": provenance, "time": Spread.within(1.25)})


def _answer_of(row: CalibrationRow) -> CalibrationAnswer:
    return CalibrationAnswer(
        id=row.id, user=row.user, workload=row.workload, gpu=row.gpu,
        created_at=row.created_at, knowledge=row.calibration,
    )  # fmt: skip
