"""Metrics and their samples. Each collector has its own table; `pipeline.TABLE` has all of them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "info", "histogram"]
_UNITS = ("joules", "seconds", "bytes", "watts", "celsius", "hertz", "ratio", "grams")


@dataclass(frozen=True)
class Metric:
    """A metric family. Units are base units and stand at the end of the name."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    group: str = ""

    @property
    def unit(self) -> str:
        stem = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")

    @property
    def is_per_job(self) -> bool:
        return "jobid" in self.labels

    @property
    def form(self) -> str:
        """How values are written. Jobs' joules and seconds are to the thousandth, which is what
        their sources resolve, and which is written twice as fast as the shortest exact form."""
        return "%.3f" if self.is_per_job and self.unit in ("joules", "seconds") else "%r"


def metric_group(title: str, *rows: tuple[str, Kind, str, str]) -> tuple[Metric, ...]:
    """Metrics under one heading of the reference: name without `carme_`, kind, labels, help."""
    return tuple(
        Metric(f"carme_{name}", kind, tuple(labels.split()), text, title)
        for name, kind, labels, text in rows
    )


JOB = "jobid node"
GPU = "gpu uuid"
OWNER = "user account partition"

EXPORTER = metric_group(
    "Exporter",
    ("exporter_info", "info", "version mode node", "The exporter itself; always 1."),
    ("exporter_series", "gauge", "", "Series in the last answer."),
    ("exporter_series_limit", "gauge", "", "Series that an answer may have at most."),
    ("exporter_rolled_up_jobs", "gauge", "", "Jobs that share the series with jobid `other`."),
    ("exporter_rolled_up_total", "counter", "", "Series folded into `other` since the start."),
    ("exporter_collection_seconds", "gauge", "", "Time the last collection took."),
    ("exporter_collected_timestamp_seconds", "gauge", "", "When it was collected."),
    ("exporter_state_failures_total", "counter", "", "State files that could not be written."),
    ("collector_success", "gauge", "collector",
     "1 when every run of the collector in the last collection worked."),
    ("collector_duration_seconds", "gauge", "collector",
     "Time of the collector's runs in the last collection."),
    ("collector_failures_total", "counter", "collector reason", "Runs that failed, and why."),
    ("collector_value_errors_total", "counter", "collector value",
     "Values left out because the source gave none, or an implausible one."),
)  # fmt: skip
"""What the exporter says about itself and its collectors."""

LabelValues = tuple[str, ...]
Family = dict[LabelValues, float]


class Samples:
    """The samples of one collection. A family's label values are unique: a later one replaces."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, name: str, labels: LabelValues, value: float | None) -> None:
        """Add a sample; None adds nothing."""
        if value is not None:
            self.families.setdefault(name, {})[labels] = value

    def increase(self, name: str, labels: LabelValues, value: float) -> None:
        """Add to a sample that may be there already."""
        family = self.families.setdefault(name, {})
        family[labels] = family.get(labels, 0.0) + value

    def update(self, other: "Samples") -> None:
        """Take over the samples of `other`."""
        for name, family in other.families.items():
            self.families.setdefault(name, {}).update(family)

    def value(self, name: str, *labels: str) -> float | None:
        """One sample's value."""
        return self.families.get(name, {}).get(labels)

    def __len__(self) -> int:
        return sum(len(family) for family in self.families.values())


class LabelledCounter:
    """Counters that only grow, by label values."""

    def __init__(self) -> None:
        self.values: Family = {}

    def add(self, labels: LabelValues, amount: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount
