"""The rows of `carme top`: one for each job on a node, of one exporter or of Prometheus."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from carme.prometheus import PrometheusClient, Sample
from carme_monitoring.accounting.job_table import NodeJob
from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import BY_NAME


class JobRow(TypedDict):
    """A job on a node."""

    jobid: int
    node: str
    user: str
    uid: int
    state: str
    seconds: float
    gpus: int
    is_virtual: bool
    gpu_utilisation: float | None
    gpu_memory_bytes: float
    gpu_watts: float
    cpus: float
    memory_bytes: float
    joules: float
    gpu_idle_seconds: float
    gpu_held_seconds: float


def job_rows(samples: Samples, node: str, jobs: Iterable[NodeJob], now: float) -> list[JobRow]:
    """A row for every job that the last collection knows."""
    families = samples.families
    power = {
        labels[1]: value for labels, value in families.get("carme_gpu_power_watts", {}).items()
    }
    names = {labels[1]: labels[2] for labels in families.get("carme_gpu_info", {})}
    rows = []
    for job in jobs:
        key = (str(job.jobid), node)
        held_gpus = [
            labels for labels in families.get("carme_job_gpu_held", {}) if labels[:2] == key
        ]
        used = [
            families.get("carme_job_gpu_utilisation_ratio", {}).get(labels) for labels in held_gpus
        ]
        ratios = [value for value in used if value is not None]
        memory = families.get("carme_job_gpu_memory_used_bytes", {})
        energy = families.get("carme_job_energy_joules_total", {})
        rows.append(
            JobRow(
                jobid=job.jobid,
                node=node,
                user=job.user,
                uid=job.uid,
                state="ended" if job.end_ns is not None else "running",
                seconds=max(0.0, (job.end_time or now) - job.start_time),
                gpus=len(held_gpus) if job.end_ns is None else len(job.gpus),
                is_virtual=any(
                    names.get(labels[3], "").startswith("Virtual") for labels in held_gpus
                ),
                gpu_utilisation=sum(ratios) / len(ratios) if ratios else None,
                gpu_memory_bytes=sum(memory.get(labels, 0) for labels in held_gpus),
                gpu_watts=sum(power.get(labels[3], 0) for labels in held_gpus),
                cpus=job.cpus,
                memory_bytes=samples.value("carme_job_memory_used_bytes", *key) or 0,
                joules=sum(value for labels, value in energy.items() if labels[:2] == key),
                gpu_idle_seconds=samples.value("carme_job_gpu_idle_seconds_total", *key) or 0,
                gpu_held_seconds=samples.value("carme_job_gpu_held_seconds_total", *key) or 0,
            )
        )
    return rows


_METRICS = (
    "carme_job_info|carme_job_start_timestamp_seconds|carme_job_end_timestamp_seconds"
    "|carme_job_cpus|carme_job_gpu_held|carme_job_gpu_utilisation_ratio"
    "|carme_job_gpu_memory_used_bytes|carme_job_memory_used_bytes|carme_job_energy_joules_total"
    "|carme_job_gpu_idle_seconds_total|carme_job_gpu_held_seconds_total"
    "|carme_gpu_power_watts|carme_gpu_info"
)


def read_cluster(url: str, login: Path | None, now: float | None = None) -> list[JobRow]:
    """Every job on every node. `login` holds `user:password`."""
    series = PrometheusClient.of(url, login).query(f'{{__name__=~"{_METRICS}"}}')
    return cluster_rows(series, time.time() if now is None else now)


def cluster_rows(series: Iterable[Sample], now: float) -> list[JobRow]:
    """A row for every job and node in Prometheus' answer."""
    samples = Samples()
    for one in series:
        if metric := BY_NAME.get(one.name):
            key = tuple(str(one.labels.get(name, "")) for name in metric.labels)
            samples.add(one.name, key, one.value)
    rows: list[JobRow] = []
    for jobid, node, user, account, partition in samples.families.get("carme_job_info", {}):
        if not jobid.isdigit():  # the series of all jobs beyond the limit
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
        rows += job_rows(samples, node, [job], now)
    return rows
