"""Predictions against what was measured, from the series that the prediction service exports."""

from carme_monitoring.dashboards.model import (
    Dashboard,
    DashboardLink,
    PanelRow,
    bars,
    lines,
    stat,
    table,
)

JOB = DashboardLink("carme-job", "jobid", "jobid")


def _error(what: str) -> str:
    """How far the predictions of ended jobs were off, relative to what was measured."""
    measured = f'carme_prediction_{what}{{kind="measured"}}'
    predicted = f'carme_prediction_{what}{{kind="predicted"}}'
    return f"abs({predicted} - ignoring (kind) {measured}) / ignoring (kind) {measured}"


def _covered(what: str) -> str:
    """The part of the jobs whose measured value lay in the interval that was promised."""
    measured = f'carme_prediction_{what}{{kind="measured"}}'
    low, high = (f'carme_prediction_{what}{{kind="{end}"}}' for end in ("low", "high"))
    within = f"({measured} >= bool ignoring (kind) {low})"
    return f"avg({within} * ignoring (kind) ({measured} <= bool ignoring (kind) {high}))"


def _by_job(what: str, kind: str) -> str:
    return f'sum by (jobid) (carme_prediction_{what}{{kind="{kind}"}})'


BOARD = Dashboard(
    "carme-predictions",
    "Carme: predictions",
    "For who wonders whether to trust the form's figures: time and energy as they were predicted,"
    " beside what was then measured.",
    (
        PanelRow(
            "How good",
            (
                stat(
                    "Error of time, median",
                    f"quantile(0.5, {_error('seconds')})",
                    "Half of the jobs were off by less. Above 20 %: calibrate on the latest jobs.",
                    "percentunit",
                    warn=0.1,
                    alarm=0.2,
                    needs="predictions",
                ),
                stat(
                    "Error of energy, median",
                    f"quantile(0.5, {_error('joules')})",
                    "Half of the jobs were off by less. Worse than time: are meters missing?",
                    "percentunit",
                    warn=0.1,
                    alarm=0.2,
                    needs="predictions",
                ),
                stat(
                    "Times within their interval",
                    _covered("seconds"),
                    "Should be what the interval promises (90 %). Lower: intervals are too narrow;"
                    " much higher: too wide to be of use.",
                    "percentunit",
                    most=1,
                    warn=0.85,
                    alarm=0.7,
                    needs="predictions",
                ),
                stat(
                    "Energies within their interval",
                    _covered("joules"),
                    "Should be what the interval promises, as for time.",
                    "percentunit",
                    most=1,
                    warn=0.85,
                    alarm=0.7,
                    needs="predictions",
                ),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                table(
                    "Time, predicted and measured",
                    "A line for each job; click for its page.",
                    (_by_job("seconds", "predicted"), "predicted (s)"),
                    (_by_job("seconds", "low"), "from (s)"),
                    (_by_job("seconds", "high"), "to (s)"),
                    (_by_job("seconds", "measured"), "measured (s)"),
                    link=JOB,
                    width=12,
                    needs="predictions",
                ),
                table(
                    "Energy, predicted and measured",
                    "A line for each job; click for its page.",
                    (_by_job("joules", "predicted"), "predicted (J)"),
                    (_by_job("joules", "low"), "from (J)"),
                    (_by_job("joules", "high"), "to (J)"),
                    (_by_job("joules", "measured"), "measured (J)"),
                    link=JOB,
                    width=12,
                    needs="predictions",
                ),
                bars(
                    "Worst predictions of time",
                    "Where to look first: a workload file that does not describe what ran?",
                    f"topk(10, {_error('seconds')})",
                    "job {{jobid}}",
                    "percentunit",
                    width=12,
                    link=JOB,
                    needs="predictions",
                ),
                lines(
                    "Error over time",
                    "Median error of time and energy; it should fall as the service learns.",
                    (f"quantile(0.5, {_error('seconds')})", "time"),
                    (f"quantile(0.5, {_error('joules')})", "energy"),
                    unit="percentunit",
                    width=12,
                    needs="predictions",
                ),
            ),
        ),
    ),
    hours=24,
)  # fmt: skip
