"""Which series there can be: the exporter's, its profiles', the recording rules' and others'."""

from carme_monitoring import metrics, recording
from carme_monitoring.profiles import tables

_TARGET = frozenset({"job", "instance", "node", "cluster"})
"""What Prometheus adds to every series of a node's exporter."""
_PROFILES = ("dcgm", "nvidia-gpu", "cgroup", "slurm-exporter")
_OTHERS = ("jupyterhub_", "prometheus_", "process_", "scrape_", "alertmanager_")
PREDICTIONS = {
    "carme_prediction_seconds": frozenset({"jobid", "kind"}),
    "carme_prediction_joules": frozenset({"jobid", "kind"}),
}
"""What the prediction service exports: kind is predicted, low, high or measured."""
LABELS: dict[str, frozenset[str]] = {
    **{m.name: frozenset(m.labels) | _TARGET for m in (*metrics.TABLE, *tables(_PROFILES))},
    **{
        rule.record: frozenset(rule.labels)
        for _, rules in recording.groups().values()
        for rule in rules
    },
    **{name: labels | _TARGET for name, labels in PREDICTIONS.items()},
    "up": _TARGET,
}


def is_known(metric: str) -> bool:
    """Whether somebody exports it."""
    return metric in LABELS or metric == "ALERTS" or metric.startswith(_OTHERS)
