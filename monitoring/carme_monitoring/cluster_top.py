"""The whole cluster's jobs for `carme top`, from Prometheus."""

import time
from collections.abc import Iterable
from pathlib import Path

from carme.prometheus import PrometheusClient, Sample
from carme_monitoring import top_rows
from carme_monitoring.accounting.job_table import NodeJob
from carme_monitoring.metric_table import BY_NAME
from carme_monitoring.samples import Samples
from carme_monitoring.top_rows import JobRow

_WANTED = (
    "carme_job_info|carme_job_start_timestamp_seconds|carme_job_end_timestamp_seconds"
    "|carme_job_cpus|carme_job_gpu_held|carme_job_gpu_utilisation_ratio"
    "|carme_job_gpu_memory_used_bytes|carme_job_memory_used_bytes|carme_job_energy_joules_total"
    "|carme_job_gpu_idle_seconds_total|carme_job_gpu_held_seconds_total"
    "|carme_gpu_power_watts|carme_gpu_info"
)


def read(url: str, login: Path | None, now: float | None = None) -> list[JobRow]:
    """Every job on every node. `login` holds `user:password`."""
    series = PrometheusClient.of(url, login).query(f'{{__name__=~"{_WANTED}"}}')
    return rows(series, time.time() if now is None else now)


def rows(series: Iterable[Sample], now: float) -> list[JobRow]:
    """A row for every job and node in Prometheus' answer."""
    samples = Samples()
    for one in series:
        metric = BY_NAME.get(one.name)
        if metric:
            key = tuple(str(one.labels.get(name, "")) for name in metric.labels)
            samples.add(metric.name, key, one.value)
    job_rows: list[JobRow] = []
    for jobid, node, user, account, partition in samples.families.get("carme_job_info", {}):
        if not jobid.isdigit():  # the series that many share
            continue
        ended = samples.value("carme_job_end_timestamp_seconds", jobid, node)
        job = NodeJob(
            int(jobid),
            0,
            end_ns=None if ended is None else 0,
            user=user,
            account=account,
            partition=partition,
            cpus=samples.value("carme_job_cpus", jobid, node) or 0.0,
            start_time=samples.value("carme_job_start_timestamp_seconds", jobid, node) or now,
            end_time=ended,
        )
        job_rows += top_rows.job_rows(samples, node, [job], now)
    return job_rows
