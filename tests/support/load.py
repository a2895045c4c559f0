"""The series of a cluster that runs a thousand jobs, with arbitrary values.

Every metric of the exporter's table and all recorded series, for jobs on nodes with four GPUs each.
The text is either one scrape or a history.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carme_monitoring.dashboards import promql
from carme_monitoring.metrics import Metric
from carme_monitoring.pipeline import TABLE
from support.generators import recording_rules

GPUS_PER_NODE = 4
SCRAPE_SECONDS, RULE_SECONDS, COARSE_SECONDS = 15, 30, 60
BLOCK_SECONDS = 7200
_USERS, _ACCOUNTS = 100, 10
_VALUES: Mapping[str, tuple[str, ...]] = {
    "component": ("gpu", "cpu", "dram", "rest"),
    "consumer": ("jobs", "unallocated", "system"),
    "currency": ("EUR",),
    "mode": ("user", "system", "idle"),
    "direction": ("receive", "send"),
    "collector": ("gpu", "host", "cgroup", "power"),
    "state": ("allocated", "free", "unavailable", "idle", "running", "pending"),
    "clock": ("graphics", "sm", "memory", "video"),
    "kind": ("corrected", "uncorrected"),
    "percentile": ("50", "90", "99"),
    "scheduler": ("main", "backfill"),
    "statistic": ("last", "mean", "max"),
    "reason": ("Priority", "thermal"),
    "partition": ("gpu",),
    "mountpoint": ("/", "/tmp"),
    "signal": ("gpu", "send"),
}
# All jobs run, and none is close to its time limit.
_ABSENT = frozenset({"carme_job_end_timestamp_seconds", "carme_slurm_job_ends_timestamp_seconds"})
_RULED = frozenset(
    name
    for _, rules in recording_rules.groups().values()
    for rule in rules
    for name in promql.names(rule.expr).metrics
)


def _owner(job: int) -> dict[str, str]:
    user = job % _USERS
    return {"user": f"user{user}", "account": f"account{user % _ACCOUNTS}", "partition": "gpu"}


@dataclass(frozen=True)
class Series:
    """One series: the metric's name, and all of it as text without a value."""

    name: str
    text: str
    value: str
    """`@counter`, `@gauge` or a number."""

    @property
    def is_recorded(self) -> bool:
        return ":" in self.name


@dataclass(frozen=True)
class Load:
    """A number of jobs with one GPU each, on as many nodes as they need."""

    now: float
    jobs: int = 1000
    hours: Mapping[str, float] = field(default_factory=dict)
    """How far back the history of a metric or rule goes, where it is read over time."""

    def scraped(self) -> list[Series]:
        """The series of the exporters."""
        tables = (metric for metric in TABLE if metric.name not in _ABSENT)
        return [series for metric in tables for series in self._of_metric(metric)]

    def recorded(self) -> list[Series]:
        """The recorded series that dashboards show over time."""
        return [
            Series(rule.record, _text(rule.record, {"cluster": "load", **labels}), "@gauge")
            for _, rules in recording_rules.groups().values()
            for rule in rules
            if self.hours.get(rule.record)
            for labels in _products(rule.labels, self._subjects(frozenset(rule.labels)))
        ]

    def _of_metric(self, metric: Metric) -> Iterator[Series]:
        value = {"counter": "@counter", "info": "1"}.get(metric.kind, "@gauge")
        if metric.name.endswith("timestamp_seconds"):
            value = f"{self.now - 7200:.0f}"
        names = frozenset(metric.labels)
        for labels in _products(metric.labels, self._targets(metric, names)):
            yield Series(metric.name, _text(metric.name, {"cluster": "load", **labels}), value)

    def _targets(self, metric: Metric, names: frozenset[str]) -> Iterator[dict[str, str]]:
        """The labels that Prometheus adds to a target's series."""
        if metric.group.startswith("Cluster"):
            target = {"instance": "controller", "job": "carme-controller"}
            yield from (
                {**target, **labels} for labels in self._subjects(names - {"jobid", "node"})
            )
            return
        for labels in self._subjects(names | {"node"}):
            yield {"instance": labels["node"], "job": "carme", **labels}

    def _subjects(self, names: frozenset[str]) -> Iterator[dict[str, str]]:
        """The labels of each subject of the metric."""
        per_job = names & {"jobid", "uuid"} or {"node", "user"} <= names
        if per_job:
            count = self.jobs
        elif "node" in names:
            count = self.jobs // GPUS_PER_NODE
        else:
            count = _USERS if "user" in names else _ACCOUNTS if "account" in names else 1
        for index in range(count):
            job = index if per_job or "node" not in names else index * GPUS_PER_NODE
            gpu = {"gpu": str(job % GPUS_PER_NODE), "uuid": f"GPU-{job}"}
            node = f"node{job // GPUS_PER_NODE}"
            label_values = {"jobid": str(1000 + job), "node": node, **gpu, **_owner(job)}
            yield {name: value for name, value in label_values.items() if name in names}

    def history(self, folder: Path) -> Iterator[Path]:
        """Files of OpenMetrics text, each within one block of Prometheus'; to be deleted by the
        caller. A metric has its `hours`, and at least what the rules look back for."""
        lines_by_reach: dict[tuple[int, float], list[str]] = defaultdict(list)
        for series in (*self.scraped(), *self.recorded()):
            lines_by_reach[self._reach(series)].append(
                f"{series.text} {_open(series.value)} %(at)s\n"
            )
        groups = {reach: "".join(lines) for reach, lines in lines_by_reach.items()}
        end = int(self.now - self.now % COARSE_SECONDS)
        longest = max(back for _, back in groups)
        first = int(end - longest) // BLOCK_SECONDS * BLOCK_SECONDS
        for start in range(first, end, BLOCK_SECONDS):
            file = folder / f"{start}.txt"
            with file.open("w", encoding="utf-8") as stream:
                for at in range(start, min(start + BLOCK_SECONDS, end), SCRAPE_SECONDS):
                    for (step, back), text in groups.items():
                        if at % step == 0 and end - at <= back:
                            stream.write(text % {"at": at, **_values(at)})
                stream.write("# EOF\n")
            yield file

    def _reach(self, series: Series) -> tuple[int, float]:
        """Seconds between its values, and seconds that they go back."""
        back = self.hours.get(series.name, 0) * 3600
        if series.is_recorded:
            return RULE_SECONDS, back
        if series.name.startswith(("carme_owner_", "carme_node_")) and series.value == "@counter":
            return SCRAPE_SECONDS, max(back, 4500)
        if series.name in _RULED:
            return SCRAPE_SECONDS, max(back, 600)
        # A dashboard over an hour shows one job or node, so its volume is small.
        return (COARSE_SECONDS if back == 3600 else SCRAPE_SECONDS), back


def page(series: Iterable[Series]) -> str:
    """All series in the text format, to be `filled` at each scrape."""
    return "".join(f"{row.text} {_open(row.value)}\n" for row in series)


def filled(text: str, at: float) -> bytes:
    """The page with the values at that time."""
    return (text % _values(at)).encode()


def _open(value: str) -> str:
    return f"%({value[1:]})s" if value.startswith("@") else value


def _values(at: float) -> dict[str, str]:
    return {"counter": f"{at % 1e8 * 1.5:.1f}", "gauge": f"{0.5 + at % 60 / 1000:.3f}"}


def _products(
    names: tuple[str, ...], subjects: Iterable[dict[str, str]]
) -> Iterator[dict[str, str]]:
    for subject in subjects:
        other_names = [name for name in names if name not in subject and name != "cluster"]
        for values in itertools.product(*(_VALUES.get(name, ("x",)) for name in other_names)):
            yield {**subject, **dict(zip(other_names, values, strict=True))}


def _text(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"
