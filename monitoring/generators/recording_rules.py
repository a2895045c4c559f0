"""Prints monitoring/prometheus/rules/recording.yml, the recording rules of Prometheus.

The same dozen figures for users, accounts, partitions, nodes and the cluster, over five minutes and
an hour, would be a hundred and fifty rules to keep alike by hand.

Rates come from counters that live as long as the node: a job's counter may have a single value, and
`increase()` would lose every short job with it. What a counter gained is its last value less the
last one before the window, without `increase()`'s extrapolation: windows side by side then add up
to what was used, also over a restart of an exporter or of Prometheus. A job's totals are the last
value of its counters.

Reading and joining series is expensive, adding up is not: raw series are read for the five minutes
only, and an hour is made of those. Every minute it takes the five minutes before, a fifth of each:
what was used counts once, slides in and out of the hour within five minutes, and hours side by side
add up as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import yaml

WINDOWS = {"5m": 300, "1h": 3600}
OWNER = ("user", "account", "partition")
_BY = "cluster"
_JOB = ("cluster", "jobid", *OWNER)
_HELD_BACK = "10m"
"""Series still count if their exporter is away for this long, for instance to restart."""


@dataclass(frozen=True)
class RecordingRule:
    """A recording rule, and what it means to the reader of a dashboard."""

    record: str
    expr: str
    labels: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class RecordedFigure:
    """Something that is counted on every node and adds up over nodes."""

    name: str
    counter: str
    """Without `carme_owner_` or `carme_node_`."""
    how: Literal["avg", "increase"]
    meaning: str
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """One figure over another, between 0 and 1."""

    name: str
    over: str
    under: str
    meaning: str


FIGURES = (
    RecordedFigure("energy_joules", "energy_joules_total", "increase", "Energy used."),
    RecordedFigure("power_watts", "energy_joules_total", "avg", "Mean power."),
    RecordedFigure("emissions_grams", "emissions_grams_total", "increase", "CO2 equivalent."),
    RecordedFigure("cost", "cost_total", "increase", "Cost of the energy.", ("currency",)),
    RecordedFigure("gpus_held", "gpu_held_seconds_total", "avg", "GPUs held by jobs, on average."),
    RecordedFigure("gpus_idle", "gpu_idle_seconds_total", "avg",
           "GPUs held by jobs and doing nothing, on average."),
    RecordedFigure("gpus_utilised", "gpu_utilised_seconds_total", "avg",
           "GPUs held by jobs times their utilisation, on average."),
    RecordedFigure("gpu_idle_joules", "gpu_idle_joules_total", "increase",
           "GPU energy while held and doing nothing."),
    RecordedFigure("cpus_asked", "cpu_asked_seconds_total", "avg",
           "Processors requested, on average."),
    RecordedFigure("cpus_idle", "cpu_idle_seconds_total", "avg",
           "Processors requested and not used, on average."),
)  # fmt: skip
RATIOS = (
    Ratio("gpu_utilisation_ratio", "gpus_utilised", "gpus_held", "Utilisation of the GPUs held."),
    Ratio("gpu_idle_ratio", "gpus_idle", "gpus_held", "Part of the GPU time held that was wasted."),
    Ratio("cpu_idle_ratio", "cpus_idle", "cpus_asked",
          "Part of the requested processor time that was wasted."),
)  # fmt: skip
_BY_NAME = {figure.name: figure for figure in FIGURES}

JOB_TOTALS = (
    ("emissions_grams", "job_emissions_grams_total", "CO2 equivalent so far."),
    ("cost", "job_cost_total", "Cost of its energy so far."),
    ("gpu_held_seconds", "job_gpu_held_seconds_total", "GPU-seconds held so far."),
    ("gpu_idle_seconds", "job_gpu_idle_seconds_total", "GPU-seconds held and idle so far."),
    ("gpu_utilised_seconds", "job_gpu_utilised_seconds_total",
     "GPU-seconds held times utilisation so far."),
    ("cpu_idle_seconds", "job_cpu_idle_seconds_total",
     "CPU-seconds requested and not used so far."),
    ("memory_untouched_bytes", "job_memory_untouched_bytes",
     "Memory requested and never used, nodes added."),
)  # fmt: skip


def groups() -> dict[str, tuple[int | None, list[RecordingRule]]]:
    """The groups of rules: name → (seconds between evaluations, rules in their order)."""
    groups_by_name: dict[str, tuple[int | None, list[RecordingRule]]] = {
        "carme_jobs": (None, list(_jobs()))
    }
    for window in WINDOWS:
        every = None if window == "5m" else 60  # an hour's figures change slowly
        nodes = [_figure("node", (_BY, "node", *f.keep), "node", f, window) for f in FIGURES]
        nodes += _ratios("node", (_BY, "node"), window)
        rules = [*_owners(window), *nodes, *_cluster(window)]
        groups_by_name[f"carme_{window}"] = (every, rules)
    return groups_by_name


def _jobs() -> Iterator[RecordingRule]:
    info = "job_node:carme_job_info:last"
    labels = ("cluster", "jobid", "node", *OWNER)
    # Two infos of a job would fail every join: its cgroup may be seen before its record is read.
    recorded, any_ = (
        f"topk by (cluster, jobid, node) (1, last_over_time(carme_job_info{matcher}[{_HELD_BACK}]))"
        for matcher in ('{user!=""}', "")
    )
    job_info = f"{recorded}\n  or on (cluster, jobid, node) {any_}"
    yield RecordingRule(info, f"max by ({', '.join(labels)}) (\n  {job_info}\n)", labels,
               "The owner of the job, for joins.")  # fmt: skip
    counted = f"last_over_time(carme_job_energy_joules_total[{_HELD_BACK}])"
    by = ("cluster", "jobid", "component")
    total = f"sum by ({', '.join(by)}) ({counted})"
    yield RecordingRule("job_component:carme_energy_joules:last", total, by,
               "Energy so far by component: gpu, cpu, dram, rest.")  # fmt: skip
    energy = "job_node:carme_energy_joules:last"
    by = ("cluster", "jobid", "node")
    yield RecordingRule(
        energy, f"sum by ({', '.join(by)}) ({counted})", by, "Energy so far on a node."
    )
    yield RecordingRule("job:carme_energy_joules:last", _join(energy), _JOB, "Energy so far.")
    for name, metric, meaning in JOB_TOTALS:
        labels_kept = ("currency",) if name == "cost" else ()
        yield RecordingRule(
            f"job:carme_{name}:last", _joined(metric, labels_kept), (*_JOB, *labels_kept), meaning
        )
    for name, over, meaning in (
        ("gpu_utilisation_ratio", "gpu_utilised_seconds", "Utilisation of its GPUs so far."),
        ("gpu_idle_ratio", "gpu_idle_seconds", "Part of its GPU time that was wasted so far."),
    ):
        yield RecordingRule(f"job:carme_{name}:last",
                   f"job:carme_{over}:last / (job:carme_gpu_held_seconds:last > 0)",
                   _JOB, meaning)  # fmt: skip
    yield RecordingRule("job:carme_start_timestamp_seconds:min",
               _joined("job_start_timestamp_seconds", (), "min"), _JOB,
               "When it began, on its first node.")  # fmt: skip
    running = "unless on (cluster, jobid, node) carme_job_end_timestamp_seconds"
    # A young job began at zero, whenever it was first seen.
    new_job = (
        f"0 * {energy} and on (cluster, jobid, node)"
        " (time() - carme_job_start_timestamp_seconds < 330)"
    )
    base = f"{energy} offset 5m or {new_job} or min_over_time({energy}[5m])"
    gained = f"(clamp_min({energy} - ({base}), 0)\n    {running})"
    yield RecordingRule(
        "job:carme_power_watts:avg5m",
        f"{_join(gained)}\n/ clamp(time() - job:carme_start_timestamp_seconds:min, 1, 300)",
        _JOB, "Mean power of a running job in the last five minutes, or since it began.",
    )  # fmt: skip
    yield RecordingRule(
        "job:carme_gpu_utilisation_ratio:avg5m",
        _join("avg_over_time(carme_job_gpu_utilisation_ratio[5m])", "avg"),
        _JOB, "Mean utilisation of the GPUs of a running job in the last five minutes.",
    )  # fmt: skip


def _gained(counter: str) -> str:
    """What a counter gained in five minutes; zero in those in which it was reset."""
    now = f"last_over_time({counter}[{_HELD_BACK}])"
    earlier = f"last_over_time({counter}[{_HELD_BACK}] offset 5m)"
    lowest = f"min_over_time({counter}[5m])"
    return f"clamp_min({now} - ({earlier} or {lowest}), 0)"


def _joined(metric: str, keep: tuple[str, ...] = (), how: str = "sum") -> str:
    return _join(f"last_over_time(carme_{metric}[{_HELD_BACK}])", how, keep)


def _join(inner: str, how: str = "sum", keep: tuple[str, ...] = ()) -> str:
    """`inner` by (cluster, jobid, node) with its owner, nodes added up."""
    return (
        f"{how} by ({', '.join((*_JOB, *keep))}) (\n  {inner}\n"
        f"  * on (cluster, jobid, node) group_left ({', '.join(OWNER)})"
        " job_node:carme_job_info:last\n)"
    )


def _owners(window: str) -> Iterator[RecordingRule]:
    """Per user, account and partition together first: the three then only add up."""
    for figure in FIGURES:
        by = (_BY, *OWNER, *figure.keep)
        yield _figure("owner", by, "owner", figure, window, "of a user in an account and partition")
    for level in OWNER:
        for figure in FIGURES:
            by = (_BY, level, *figure.keep)
            base = f"owner:carme_{figure.name}:{figure.how}{window}"
            yield RecordingRule(f"{level}:carme_{figure.name}:{figure.how}{window}",
                       f"sum by ({', '.join(by)}) ({base})", by,
                       f"{figure.meaning} {_last(window)}")  # fmt: skip
        yield from _ratios(level, (_BY, level), window)


def _cluster(window: str) -> Iterator[RecordingRule]:
    for figure in FIGURES:
        by = (_BY, *figure.keep)
        base = f"node:carme_{figure.name}:{figure.how}{window}"
        yield RecordingRule(f"cluster:carme_{figure.name}:{figure.how}{window}",
                   f"sum by ({', '.join(by)}) ({base})", by,
                   f"{figure.meaning} {_last(window)}")  # fmt: skip
    yield from _ratios("cluster", (_BY,), window)
    by = (_BY, "consumer", "component")
    energy = _figure("cluster_part", by, "node", _BY_NAME["energy_joules"], window,
                     "by consumer and component")  # fmt: skip
    yield energy
    for part, grouping in (("consumer", "by consumer: jobs, unallocated, system"),
                        ("component", "by component: gpu, cpu, dram, rest")):  # fmt: skip
        yield RecordingRule(f"cluster_{part}:carme_power_watts:avg{window}",
                   f"sum by ({_BY}, {part}) ({energy.record}) / {WINDOWS[window]}", (_BY, part),
                   f"Mean power {grouping}. {_last(window)}")  # fmt: skip


def _figure(
    level: str, by: tuple[str, ...], kind: str, figure: RecordedFigure, window: str, owner: str = ""
) -> RecordingRule:
    seconds = WINDOWS[window]
    if figure.name == "power_watts":
        # From the rule just before.
        expr = f"{level}:carme_energy_joules:increase{window} / {seconds}"
    elif window == "5m":
        expr = f"sum by ({', '.join(by)}) (\n  {_gained(f'carme_{kind}_{figure.counter}')}\n)"
        expr += f" / {seconds}" if figure.how == "avg" else ""
    else:
        short = f"{level}:carme_{figure.name}:{figure.how}5m"
        parts = 5 if figure.how == "increase" else seconds // 60
        # A second less than an hour: sixty values, whether or not it is asked on the minute.
        expr = f"sum_over_time({short}[59m59s:1m]) / {parts}"
    meaning = " ".join(filter(None, (figure.meaning.rstrip("."), owner))) + "."
    return RecordingRule(f"{level}:carme_{figure.name}:{figure.how}{window}", expr, by,
                f"{meaning} {_last(window)}")  # fmt: skip


def _ratios(level: str, by: tuple[str, ...], window: str) -> Iterator[RecordingRule]:
    for ratio in RATIOS:
        over, under = (
            f"{level}:carme_{name}:{_BY_NAME[name].how}{window}"
            for name in (ratio.over, ratio.under)
        )
        name = f"{level}:carme_{ratio.name}:avg{window}"
        yield RecordingRule(name, f"{over} / ({under} > 0)", by,
                   f"{ratio.meaning} {_last(window)}")  # fmt: skip


def _last(window: str) -> str:
    return "In the last five minutes." if window == "5m" else "In the last hour."


class _Text(str):
    """Written as a block when it has several lines."""


def _represent(dumper: yaml.SafeDumper, text: _Text) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


yaml.SafeDumper.add_representer(_Text, _represent)


def text() -> str:
    """The file."""
    content = {
        "groups": [
            {
                "name": name,
                **({"interval": f"{every}s"} if every else {}),
                "rules": [{"record": rule.record, "expr": _Text(rule.expr)} for rule in rules],
            }
            for name, (every, rules) in groups().items()
        ]
    }
    head = (
        "# Made by monitoring/generators/recording_rules.py; do not edit:\n"
        "#   ./dev run python monitoring/generators/recording_rules.py"
        " > monitoring/prometheus/rules/recording.yml\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, width=1000)


if __name__ == "__main__":
    print(text(), end="")
