"""Fixed PromQL queries about jobs, and their results as models. No I/O.

A job's totals are the last values of its counters: `increase()` would miss the first value, and a
job of two seconds has only one. A query covers the job's own time only: Slurm reuses job numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from carme.jobs.models import Idleness, MeasuredUsage, Plot
from carme.prometheus import RangeSeries, Sample

SETTLE_SECONDS = 60
"""Exporter and Prometheus need two of their intervals to have a job's last values."""
PLOT_POINTS = 60
_MARGIN_SECONDS = 60

ALL_TOTALS = (
    "energy_joules_total|energy_estimated_joules_total|energy_uncertainty_ratio"
    "|emissions_grams_total|cost_total"
    "|gpu_held_seconds_total|gpu_idle_seconds_total|gpu_idle_joules_total"
    "|cpu_seconds_total|cpu_idle_seconds_total|memory_peak_bytes|oom_kills_total"
    "|network_bytes_total|io_bytes_total"
)
LIST_TOTALS = (
    "energy_joules_total|emissions_grams_total|cost_total"
    "|gpu_held_seconds_total|gpu_idle_seconds_total|cpu_seconds_total|memory_peak_bytes"
)


def totals(job_ids: Iterable[int], seconds: float, names: str = ALL_TOTALS) -> str:
    """The totals of jobs in the last `seconds`, to be evaluated just after their end."""
    window = math.ceil(seconds) + _MARGIN_SECONDS
    match = f'{{__name__=~"carme_job_({names})",jobid=~"{_any_of(job_ids)}"}}'
    return f"last_over_time({match}[{window}s])"


def _any_of(job_ids: Iterable[int]) -> str:
    return "|".join(str(int(job_id)) for job_id in job_ids)


def gpu_peaks(job_id: int, seconds: float) -> str:
    """The highest utilisation and memory use of each of the job's GPUs."""
    window = math.ceil(seconds) + _MARGIN_SECONDS
    metrics = {"worked": "gpu_utilisation_ratio", "memory": "gpu_memory_used_bytes"}
    return " or ".join(
        f'label_replace(max_over_time(carme_job_{name}{{jobid="{int(job_id)}"}}[{window}s]),'
        f' "what", "{label}", "", "")'
        for label, name in metrics.items()
    )


def plots(job_id: int, window_seconds: int) -> dict[str, str]:
    """The plots of a report by field: mean utilisation of the job's GPUs, watts charged to the job
    and bytes a second over the network, the rates averaged over the window before each moment."""
    job, window = f'{{jobid="{int(job_id)}"}}', f"[{int(window_seconds)}s]"
    return {
        "gpu_plot": f"avg(carme_job_gpu_utilisation_ratio{job})",
        "power_plot": f"sum(rate(carme_job_energy_joules_total{job}{window}))",
        "network_plot": f"sum(rate(carme_job_network_bytes_total{job}{window}))",
    }


def idleness(job_ids: Sequence[int], seconds: float) -> str:
    """GPU time held and idle, and CPU time, in the last `seconds`, by job.

    A difference and not a rate: a job that was not measured `seconds` ago has no result, so that
    no session is ended for a lack of samples.
    """
    jobs, ago = f'{{jobid=~"{_any_of(job_ids)}"}}', f"{math.ceil(seconds)}s"
    parts = []
    for name in ("gpu_held_seconds_total", "gpu_idle_seconds_total", "cpu_seconds_total"):
        series = f"carme_job_{name}{jobs}"
        change = f"sum by (jobid) ({series}) - sum by (jobid) ({series} offset {ago})"
        parts.append(f'label_replace({change}, "what", "{name}", "", "")')
    return " or ".join(parts)


def read_idleness(samples: Iterable[Sample], seconds: float) -> dict[int, Idleness]:
    """The result of `idleness`, by job."""
    by_job: dict[int, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        by_job[int(sample.labels["jobid"])][sample.labels["what"]] = sample.value
    idleness_by_job = {}
    for job_id, values in by_job.items():
        held, idle = values.get("gpu_held_seconds_total"), values.get("gpu_idle_seconds_total")
        # Half of the time must have been measured: a job that has just begun, or whose exporter
        # was away, is not idle.
        if held is None or idle is None or held < seconds / 2:
            continue
        idleness_by_job[job_id] = Idleness(
            gpu_busy_ratio=min(1.0, max(0.0, 1 - idle / held)),
            cpu_cores=max(0.0, values.get("cpu_seconds_total", 0.0) / seconds),
        )
    return idleness_by_job


def read_totals(
    samples: Iterable[Sample], peaks: Iterable[Sample] = ()
) -> dict[int, MeasuredUsage]:
    """The result of `totals`, by job; `peaks` is that of `gpu_peaks`."""
    by_job: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.labels.get("jobid", "").isdecimal():
            by_job[int(sample.labels["jobid"])].append(sample)
    peaks = tuple(peaks)
    return {job_id: _measured(job_samples, peaks) for job_id, job_samples in by_job.items()}


def _measured(samples: Sequence[Sample], peaks: Sequence[Sample]) -> MeasuredUsage:
    named: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        named[sample.name.removeprefix("carme_job_")].append(sample)

    def total(name: str) -> float | None:
        return sum(s.value for s in named[name]) if named[name] else None

    def by(name: str, label: str) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for sample in named[name]:
            sums[sample.labels.get(label, "")] += sample.value
        return dict(sorted(sums.items()))

    nodes = by("energy_joules_total", "node")
    kills = total("oom_kills_total")
    worked = [s.value for s in peaks if s.labels.get("what") == "worked"]
    memory = [s.value for s in peaks if s.labels.get("what") == "memory"]
    node_peaks = [s.value for s in named["memory_peak_bytes"]]
    return MeasuredUsage(
        joules=by("energy_joules_total", "component"),
        joules_by_node=nodes,
        estimated_joules=total("energy_estimated_joules_total") or 0.0,
        uncertainty_ratio=_uncertainty(named["energy_uncertainty_ratio"], nodes),
        emissions_grams=total("emissions_grams_total"),
        cost=by("cost_total", "currency"),
        gpu_held_seconds=total("gpu_held_seconds_total"),
        gpu_idle_seconds=total("gpu_idle_seconds_total"),
        gpu_idle_joules=total("gpu_idle_joules_total"),
        gpus_worked=sum(value >= 0.01 for value in worked) if worked else None,
        gpu_memory_peak_bytes=max(memory) if memory else None,
        cpu_seconds=total("cpu_seconds_total"),
        cpu_idle_seconds=total("cpu_idle_seconds_total"),
        memory_peak_bytes=total("memory_peak_bytes"),
        memory_peak_node_bytes=max(node_peaks) if node_peaks else None,
        oom_kills=None if kills is None else round(kills),
        network_bytes=total("network_bytes_total"),
        io_bytes=total("io_bytes_total"),
    )


def _uncertainty(ratios: Sequence[Sample], joules: dict[str, float]) -> float | None:
    """Of the sum over nodes. Their meters are of the same kind, so errors add up."""
    total = sum(joules.values())
    if not ratios or not total:
        return None
    return sum(s.value * joules.get(s.labels.get("node", ""), 0.0) for s in ratios) / total


def plot_step(seconds: float, scrape_seconds: float) -> int:
    """Seconds between a plot's points: whole scrape intervals, about PLOT_POINTS in the job's time.

    At least two intervals, so that the rate over one step has the two samples that it needs.
    """
    interval = round(scrape_seconds)  # as in prometheus.yml
    return interval * max(2, math.ceil(seconds / PLOT_POINTS / interval))


def read_plot(lines: Sequence[RangeSeries], start: float, step: int, count: int) -> Plot | None:
    """The values at the end of each step after `start`; None without a series."""
    if not lines:
        return None
    values = {round((at - start) / step): value for at, value in lines[0].points}
    return Plot(step_seconds=step, values=tuple(values.get(i) for i in range(1, count + 1)))
