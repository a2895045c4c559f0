"""Every metric of the exporter, from the tables of the collectors and of the accounting."""

from carme_monitoring.accounting import accounting_samples
from carme_monitoring.collectors import collector_types
from carme_monitoring.metrics import EXPORTER, Metric

_GROUPS = (
    "Exporter", "GPU", "Power", "Node", "Jobs on the node", "Use of the node by jobs",
    "GPUs and traffic of jobs", "GPU allocations", "Energy", "Waste", "Owners", "Bursts",
    "Cluster (controller mode)",
)  # fmt: skip
"""The order of an answer and of the reference; further groups come last."""


def _position(metric: Metric) -> int:
    return _GROUPS.index(metric.group) if metric.group in _GROUPS else len(_GROUPS)


TABLE: tuple[Metric, ...] = tuple(
    sorted(
        (
            *EXPORTER,
            *(metric for kind in collector_types() for metric in kind.metrics),
            *accounting_samples.METRICS,
        ),
        key=_position,
    )
)
BY_NAME = {metric.name: metric for metric in TABLE}
