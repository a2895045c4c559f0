"""Makes monitoring/prometheus/rules/recording.yml: `python -m carme_monitoring.recording`.

The same dozen figures for users, accounts, partitions, nodes and the cluster, over five minutes and
an hour, would be a hundred and fifty rules to keep alike by hand.

Rates come from counters that live as long as the node: `increase()` does not see a counter's first
value, and with it every short job would be lost. A job's totals are the last value of its counters.
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
"""A job's series may be away for so long (its node's exporter is started again) and still count."""


@dataclass(frozen=True)
class Rule:
    """A recording rule, and what it means to the reader of a dashboard."""

    record: str
    expr: str
    labels: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Figure:
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
    Figure("power_watts", "energy_joules_total", "avg", "Mean power."),
    Figure("energy_joules", "energy_joules_total", "increase", "Energy used."),
    Figure("emissions_grams", "emissions_grams_total", "increase", "CO2 equivalent."),
    Figure("cost", "cost_total", "increase", "Cost of the energy.", ("currency",)),
    Figure("gpus_held", "gpu_held_seconds_total", "avg", "GPUs held by jobs, on average."),
    Figure("gpus_idle", "gpu_idle_seconds_total", "avg",
           "GPUs held by jobs and doing nothing, on average."),
    Figure("gpus_utilised", "gpu_utilised_seconds_total", "avg",
           "GPUs held by jobs times their utilisation, on average."),
    Figure("gpu_idle_joules", "gpu_idle_joules_total", "increase",
           "GPU energy while held and doing nothing."),
    Figure("cpus_asked", "cpu_asked_seconds_total", "avg", "Processors asked for, on average."),
    Figure("cpus_idle", "cpu_idle_seconds_total", "avg",
           "Processors asked for and not used, on average."),
)  # fmt: skip
RATIOS = (
    Ratio("gpu_utilisation_ratio", "gpus_utilised", "gpus_held", "Utilisation of the GPUs held."),
    Ratio("gpu_idle_ratio", "gpus_idle", "gpus_held", "Part of the GPU time held that was wasted."),
    Ratio("cpu_idle_ratio", "cpus_idle", "cpus_asked",
          "Part of the processor time asked for that was wasted."),
)  # fmt: skip
_BY_NAME = {figure.name: figure for figure in FIGURES}

JOB_TOTALS = (
    ("energy_estimated_joules", "job_energy_estimated_joules_total",
     "The part of its energy that was divided by time instead of by a reading."),
    ("emissions_grams", "job_emissions_grams_total", "CO2 equivalent so far."),
    ("cost", "job_cost_total", "Cost of its energy so far."),
    ("gpu_held_seconds", "job_gpu_held_seconds_total", "GPU-seconds held so far."),
    ("gpu_idle_seconds", "job_gpu_idle_seconds_total", "GPU-seconds held and idle so far."),
    ("gpu_utilised_seconds", "job_gpu_utilised_seconds_total",
     "GPU-seconds held times utilisation so far."),
    ("gpu_idle_joules", "job_gpu_idle_joules_total", "GPU energy while held and idle so far."),
    ("cpu_asked_seconds", "job_cpu_asked_seconds_total", "CPU-seconds asked for so far."),
    ("cpu_idle_seconds", "job_cpu_idle_seconds_total",
     "CPU-seconds asked for and not used so far."),
    ("memory_peak_bytes", "job_memory_peak_bytes", "Memory at its peak, nodes added."),
    ("memory_untouched_bytes", "job_memory_untouched_bytes",
     "Memory asked for and never touched, nodes added."),
)  # fmt: skip


def groups() -> dict[str, tuple[str | None, list[Rule]]]:
    """The groups of rules: name → (interval, rules in the order of their evaluation)."""
    found: dict[str, tuple[str | None, list[Rule]]] = {"carme_jobs": (None, list(_jobs()))}
    for window in WINDOWS:
        # An hour's figures change slowly, and reading an hour of samples is dear.
        every = None if window == "5m" else "1m"
        rules = [*_owners(window), *_nodes(window), *_cluster(window)]
        found[f"carme_{window}"] = (every, rules)
    return found


def _jobs() -> Iterator[Rule]:
    info = "job_node:carme_job_info:last"
    last = f"last_over_time(carme_job_info[{_HELD_BACK}])"
    labels = ("cluster", "jobid", "node", *OWNER)
    # Two at once would fail every join: a job may be known by its cgroup before its record is read.
    one = f"topk by (cluster, jobid, node) (1, {last})"
    yield Rule(info, f"max by ({', '.join(labels)}) ({one})", labels,
               "Whose job it is; to join with.")  # fmt: skip
    component = "job_component:carme_energy_joules:last"
    yield Rule(component, _joined("job_energy_joules_total", ("component",)),
               (*_JOB, "component"),
               "Energy so far by component: gpu, cpu, dram, rest.")  # fmt: skip
    yield Rule("job:carme_energy_joules:last", f"sum by ({', '.join(_JOB)}) ({component})", _JOB,
               "Energy so far.")  # fmt: skip
    for name, metric, meaning in JOB_TOTALS:
        more = ("currency",) if name == "cost" else ()
        yield Rule(f"job:carme_{name}:last", _joined(metric, more), (*_JOB, *more), meaning)
    for name, over, meaning in (
        ("gpu_utilisation_ratio", "gpu_utilised_seconds", "Utilisation of its GPUs so far."),
        ("gpu_idle_ratio", "gpu_idle_seconds", "Part of its GPU time that was wasted so far."),
    ):
        yield Rule(f"job:carme_{name}:last",
                   f"job:carme_{over}:last / (job:carme_gpu_held_seconds:last > 0)",
                   _JOB, meaning)  # fmt: skip
    yield Rule("job:carme_start_timestamp_seconds:min",
               _joined("job_start_timestamp_seconds", (), "min"), _JOB,
               "When it began, on its first node.")  # fmt: skip
    running = "unless on (cluster, jobid, node) carme_job_end_timestamp_seconds"
    gained = (
        "(sum by (cluster, jobid, node) (increase(carme_job_energy_joules_total[5m]))\n"
        f"    {running})"
    )
    age = "(time() - job:carme_start_timestamp_seconds:min)"
    yield Rule(
        "job:carme_power_watts:avg5m",
        f"{_join(gained)}\n/ clamp({age}, 1, 300)",
        _JOB, "Mean power of a running job in the last five minutes, or since it began.",
    )  # fmt: skip
    yield Rule(
        "job:carme_gpu_utilisation_ratio:avg5m",
        _join("avg_over_time(carme_job_gpu_utilisation_ratio[5m])", "avg"),
        _JOB, "Mean utilisation of the GPUs of a running job in the last five minutes.",
    )  # fmt: skip


def _joined(metric: str, keep: tuple[str, ...] = (), how: str = "sum") -> str:
    labels = ", ".join(("cluster", "jobid", "node", *keep))
    inner = f"max by ({labels}) (last_over_time(carme_{metric}[{_HELD_BACK}]))"
    return _join(inner, how, keep)


def _join(inner: str, how: str = "sum", keep: tuple[str, ...] = ()) -> str:
    """`inner` by (cluster, jobid, node) with its owner, nodes added up."""
    return (
        f"{how} by ({', '.join((*_JOB, *keep))}) (\n  {inner}\n"
        f"  * on (cluster, jobid, node) group_left ({', '.join(OWNER)})"
        " job_node:carme_job_info:last\n)"
    )


def _owners(window: str) -> Iterator[Rule]:
    """Per user, account and partition together first: the three then only add up."""
    for figure in FIGURES:
        by = (_BY, *OWNER, *figure.keep)
        yield _figure("owner", by, "owner", figure, window, "of a user in an account and partition")
    for level in OWNER:
        for figure in FIGURES:
            by = (_BY, level, *figure.keep)
            base = f"owner:carme_{figure.name}:{figure.how}{window}"
            yield Rule(f"{level}:carme_{figure.name}:{figure.how}{window}",
                       f"sum by ({', '.join(by)}) ({base})", by,
                       f"{figure.meaning} {_last(window)}")  # fmt: skip
        yield from _ratios(level, (_BY, level), window)


def _nodes(window: str) -> Iterator[Rule]:
    for figure in FIGURES:
        by = (_BY, "node", *figure.keep)
        yield _figure("node", by, "node", figure, window)
    yield from _ratios("node", (_BY, "node"), window)


def _cluster(window: str) -> Iterator[Rule]:
    for figure in FIGURES:
        by = (_BY, *figure.keep)
        base = f"node:carme_{figure.name}:{figure.how}{window}"
        yield Rule(f"cluster:carme_{figure.name}:{figure.how}{window}",
                   f"sum by ({', '.join(by)}) ({base})", by,
                   f"{figure.meaning} {_last(window)}")  # fmt: skip
    yield from _ratios("cluster", (_BY,), window)
    power = _BY_NAME["power_watts"]
    yield _figure("cluster_consumer", (_BY, "consumer"), "node", power, window,
                  "by who used it: jobs, unallocated, system")  # fmt: skip
    yield _figure("cluster_component", (_BY, "component"), "node", power, window,
                  "by component: gpu, cpu, dram, rest")  # fmt: skip


def _figure(
    level: str, by: tuple[str, ...], kind: str, figure: Figure, window: str, whose: str = ""
) -> Rule:
    function = "rate" if figure.how == "avg" else "increase"
    expr = f"sum by ({', '.join(by)}) ({function}(carme_{kind}_{figure.counter}[{window}]))"
    words = " ".join(filter(None, (figure.meaning.rstrip("."), whose))) + "."
    return Rule(f"{level}:carme_{figure.name}:{figure.how}{window}", expr, by,
                f"{words} {_last(window)}")  # fmt: skip


def _ratios(level: str, by: tuple[str, ...], window: str) -> Iterator[Rule]:
    for ratio in RATIOS:
        over, under = (
            f"{level}:carme_{name}:{_BY_NAME[name].how}{window}"
            for name in (ratio.over, ratio.under)
        )
        yield Rule(f"{level}:carme_{ratio.name}:avg{window}", f"{over} / ({under} > 0)", by,
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
                **({"interval": every} if every else {}),
                "rules": [{"record": rule.record, "expr": _Text(rule.expr)} for rule in rules],
            }
            for name, (every, rules) in groups().items()
        ]
    }
    head = (
        "# Made from carme_monitoring/recording.py; do not edit:\n"
        "#   ./dev run python -m carme_monitoring.recording"
        " > monitoring/prometheus/rules/recording.yml\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, width=1000)


if __name__ == "__main__":
    print(text(), end="")
