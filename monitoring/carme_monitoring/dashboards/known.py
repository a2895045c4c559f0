"""Which series there can be: the exporter's, its profiles', the recording rules' and others'."""

from carme_monitoring import metrics, recording
from carme_monitoring.metric_table import TABLE
from carme_monitoring.profiles import tables

_TARGET = frozenset({"job", "instance", "node", "cluster"})
"""What Prometheus adds to every series of a node's exporter."""
_PROFILES = ("dcgm", "nvidia-gpu", "cgroup", "slurm-exporter")
_OTHERS = ("jupyterhub_", "prometheus_", "process_", "scrape_", "alertmanager_")
_EVERY = (*TABLE, *metrics.SERVICE, *tables(_PROFILES))
LABELS: dict[str, frozenset[str]] = {
    **{m.name: frozenset(m.labels) | _TARGET for m in _EVERY},
    **{
        rule.record: frozenset(rule.labels)
        for _, rules in recording.groups().values()
        for rule in rules
    },
    **{
        f"{m.name}_bucket": frozenset(m.labels) | _TARGET | {"le"}
        for m in metrics.SERVICE
        if m.kind == "histogram"
    },
    "up": _TARGET,
}


def is_known(metric: str) -> bool:
    """Whether somebody exports it."""
    return metric in LABELS or metric == "ALERTS" or metric.startswith(_OTHERS)
