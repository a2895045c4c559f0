"""Further names for the same values, for dashboards that were made for other exporters.

Each profile is a table of metrics and a function that fills them in from Carme's own samples.
Names, labels and units are those of the other exporter, whatever they are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from carme_monitoring.metrics import Metric
from carme_monitoring.profiles import cgroup, dcgm, nvidia_gpu, slurm
from carme_monitoring.samples import Samples


@dataclass(frozen=True)
class Context:
    """What a profile needs besides samples."""

    host: str = ""
    uid_of: Mapping[str, int] = field(default_factory=dict)
    """Job id → user id."""


@dataclass(frozen=True)
class MetricProfile:
    """A profile."""

    table: tuple[Metric, ...]
    add: Callable[[Samples, Context], None]


PROFILES: Mapping[str, MetricProfile] = {
    "dcgm": MetricProfile(dcgm.TABLE, lambda out, now: dcgm.add(out, now.host)),
    "nvidia-gpu": MetricProfile(nvidia_gpu.TABLE, lambda out, _: nvidia_gpu.add(out)),
    "cgroup": MetricProfile(cgroup.TABLE, lambda out, now: cgroup.add(out, now.uid_of)),
    "slurm-exporter": MetricProfile(slurm.TABLE, lambda out, _: slurm.add(out)),
}


def tables(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of the profiles `names`."""
    return tuple(metric for name in names for metric in PROFILES[name].table)
