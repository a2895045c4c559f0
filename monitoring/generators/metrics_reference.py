"""Prints docs/reference/metrics.md, from the metric tables of the exporter."""

from collections.abc import Iterable

from carme_monitoring.metrics import Metric, metric_group
from carme_monitoring.pipeline import TABLE
from carme_monitoring.profiles import PROFILES

SERVICE = metric_group(
    "Prediction service",
    ("service_requests_total", "counter", "endpoint method status", "Requests answered."),
    ("service_request_seconds", "histogram", "endpoint", "Time to answer."),
    ("service_refusals_total", "counter", "limit",
     "Requests refused because a user reached a limit; `limit` says what it limits."),
    ("service_predictions_judged", "gauge", "kind source figure within",
     "Predictions whose job ran to its end, by whether the measured figure lay within the"
     " interval."),
    ("prediction_seconds", "gauge", "jobid kind",
     "Time of one of the newest 200 jobs with a prediction; kind is predicted, low, high, and"
     " measured once it has run to its end."),
    ("prediction_joules", "gauge", "jobid kind", "The same for the energy of its GPUs."),
)  # fmt: skip
"""The metrics of the prediction service; its tests check that they match."""
HUB = metric_group(
    "Hub",
    ("hub_refusals_total", "counter", "limit",
     "Requests refused because a user reached a limit; `limit` says what it limits."),
)  # fmt: skip
"""The metrics of the hub beside JupyterHub's own; its tests check that they match."""
_INTRODUCTION = """\
# Metrics

<!-- Made from the metric tables in carme_monitoring; do not edit:
     ./dev run python monitoring/generators/metrics_reference.py > docs/reference/metrics.md -->

Everything that `carme-exporter` exports. Names are in base units; a job is the label `jobid`,
because `job` is Prometheus' own. Of a job's series only `carme_job_info` has user and account: join
it on `(jobid, node)`, for instance

```
sum by (user) (
  carme_job_energy_joules_total * on (jobid, node) group_left (user) carme_job_info
)
```

A job's totals are the last values of its counters: `increase()` does not see a counter's first
value, and a job of two seconds has only one. Rates come from the counters of the node and of the
owners of jobs on it (`carme_owner_…`), which live on when a job ends. {doc}`rules` lists the
recording rules for both. A job's series end five minutes after the job. Beyond
`exporter.series_limit` series, further jobs share the series with jobid `other`.

The exporter's own process shows as `process_cpu_seconds_total`, `process_resident_memory_bytes`
and the like, the scrapes it served as `carme_exporter_scrapes_total`, its clock as
`carme_exporter_time_seconds`.
"""


def markdown() -> str:
    """The page."""
    parts = [_INTRODUCTION]
    for title in dict.fromkeys(metric.group for metric in TABLE):
        parts.append(f"\n## {title}\n\n{_rows(m for m in TABLE if m.group == title)}")
    parts.append(
        "\n## Prediction service\n\nRead from `/services/carme/metrics` with the token of the hub's"
        f" metrics.\n\n{_rows(SERVICE)}"
    )
    parts.append(
        "\n## Hub\n\nBeside JupyterHub's own metrics, at `/hub/metrics` with the same token.\n\n"
        f"{_rows(HUB)}"
    )
    parts.append(
        "\n## Profiles\n\nFurther names for the same values, switched on by `exporter.profiles`, "
        "for dashboards made for other\nexporters. Names, labels and units are theirs.\n"
    )
    for name, profile in PROFILES.items():
        parts.append(f"\n### {name}\n\n{_rows(profile.table)}")
    return "".join(parts)


def _rows(metrics: Iterable[Metric]) -> str:
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
