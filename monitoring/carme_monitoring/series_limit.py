"""The limit on series: beyond it, further jobs (or users) share series with the label `other`.

Jobs are let in as they come and keep their place, so a series never changes its meaning. What
ended jobs contributed to a counter of `other` stays in it: it only grows, like every counter.
"""

from collections.abc import Iterable

from carme_monitoring.metrics import Family, LabelValues, Metric, Samples

OTHER = "other"
_OWN_SERIES = 8
"""Room for the `carme_exporter_…` series, which are added last."""
_KEPT = ("node", "component", "mode", "direction", "method", "resource", "kind", "currency",
         "partition", "state")  # fmt: skip


class SeriesLimit:
    """Applies the limit to one answer after the other."""

    def __init__(self, limit: int, table: Iterable[Metric]) -> None:
        self.limit = limit
        self._table = {metric.name: metric for metric in table}
        self.rolled_total = 0
        self.rolled_jobs = 0
        self._admitted: dict[str, None] = {}
        self._live: dict[str, dict[tuple[str, LabelValues], float]] = {}
        """Counters of each rolled-up job as last seen."""
        self._gone: dict[tuple[str, LabelValues], float] = {}

    def apply(self, samples: Samples) -> Samples:
        """The samples with no more series than allowed."""
        sizes = self._sizes(samples, "jobid")
        fixed = len(samples) - sum(sizes.values())
        self._admit(sizes, fixed)
        rolled = {job for job in sizes if job not in self._admitted}
        self.rolled_jobs = len(rolled)
        if rolled or self._gone:
            samples = self._roll_jobs(samples, rolled)
        if len(samples) + _OWN_SERIES > self.limit:
            samples = self._roll_users(samples)
        return samples

    def _admit(self, sizes: dict[str, int], fixed: int) -> None:
        self._admitted = {job: None for job in self._admitted if job in sizes}
        room = self.limit - fixed - _OWN_SERIES - sum(sizes[job] for job in self._admitted)
        waiting = [job for job in sizes if job not in self._admitted and job not in self._live]
        crowded = sum(sizes[job] for job in waiting) > room
        reserve = max(sizes.values(), default=0) if crowded or self._live else 0
        for job in waiting:
            if sizes[job] <= room - reserve:
                self._admitted[job] = None
                room -= sizes[job]

    def _roll_jobs(self, samples: Samples, rolled: set[str]) -> Samples:
        out = Samples()
        current: dict[str, dict[tuple[str, LabelValues], float]] = {job: {} for job in rolled}
        for name, family in samples.families.items():
            metric = self._table.get(name)
            if metric is None or not metric.is_per_job:
                out.families[name] = family
                continue
            place = metric.labels.index("jobid")
            for labels, value in family.items():
                if labels[place] not in rolled:
                    out.add(name, labels, value)
                    continue
                self.rolled_total += 1
                key = _rolled(metric, labels)
                if metric.kind == "counter":
                    counters_of_job = current[labels[place]]
                    counters_of_job[name, key] = counters_of_job.get((name, key), 0.0) + value
                elif metric.kind == "info":
                    out.add(name, key, 1)
                elif metric.unit == "bytes" or name in ("carme_job_cpus", "carme_job_gpu_held"):
                    out.increase(name, key, value)
        for job in [job for job in self._live if job not in rolled]:
            for series, value in self._live.pop(job).items():
                self._gone[series] = self._gone.get(series, 0.0) + value
        self._live.update(current)
        for counters in (self._gone, *self._live.values()):
            for (name, key), value in counters.items():
                out.increase(name, key, value)
        return out

    def _roll_users(self, samples: Samples) -> Samples:
        """Controller mode: users with the fewest jobs share `other`."""
        sizes = self._sizes(samples, "user")
        room = self.limit - _OWN_SERIES - (len(samples) - sum(sizes.values()))
        named_users: set[str] = set()
        for user in sorted(sizes, key=lambda user: (-sizes[user], user)):
            room -= sizes[user]
            if room > len(samples) // 4:
                named_users.add(user)
        out = Samples()
        for name, family in samples.families.items():
            metric = self._table.get(name)
            if metric is None or "user" not in metric.labels or metric.is_per_job:
                out.families[name] = family
                continue
            place = metric.labels.index("user")
            rolled: Family = {}
            for labels, value in family.items():
                key = labels if labels[place] in named_users else _rolled(metric, labels)
                self.rolled_total += key is not labels
                rolled[key] = rolled.get(key, 0.0) + value
            out.families[name] = rolled
        return out

    def _sizes(self, samples: Samples, label: str) -> dict[str, int]:
        """How many series each value of `label` has, in order of appearance."""
        sizes: dict[str, int] = {}
        for name, family in samples.families.items():
            metric = self._table.get(name)
            if metric is None or label not in metric.labels:
                continue
            if label == "user" and metric.is_per_job:
                continue
            place = metric.labels.index(label)
            for labels in family:
                sizes[labels[place]] = sizes.get(labels[place], 0) + 1
        return sizes


def _rolled(metric: Metric, labels: LabelValues) -> LabelValues:
    return tuple(
        OTHER if name in ("jobid", "user", "account") else value if name in _KEPT else ""
        for name, value in zip(metric.labels, labels, strict=True)
    )
