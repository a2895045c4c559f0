"""The whole cluster's jobs for `carme top`, out of Prometheus; for those who may ask it."""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from carme.errors import ConfigError, DeniedError, UnavailableError
from carme_monitoring import board
from carme_monitoring.board import Row
from carme_monitoring.collectors.jobs import Entry
from carme_monitoring.metrics import BY_NAME
from carme_monitoring.samples import Samples

_WANTED = (
    "carme_job_info|carme_job_start_timestamp_seconds|carme_job_end_timestamp_seconds"
    "|carme_job_cpus|carme_job_gpu_held|carme_job_gpu_utilisation_ratio"
    "|carme_job_gpu_memory_used_bytes|carme_job_memory_used_bytes|carme_job_energy_joules_total"
    "|carme_job_gpu_idle_seconds_total|carme_job_gpu_held_seconds_total"
    "|carme_gpu_power_watts|carme_gpu_info"
)


def read(url: str, login: Path | None, now: float | None = None) -> list[Row]:
    """Every job on every node. `login` holds `user:password`."""
    return rows(ask(url, login), time.time() if now is None else now)


def ask(url: str, login: Path | None, seconds: float = 10) -> list[dict[str, Any]]:
    """The series that the table needs, in one query."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is not an address of Prometheus", "http://HOST:9090")
    query = urllib.parse.urlencode({"query": f'{{__name__=~"{_WANTED}"}}'})
    request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/query?{query}")  # noqa: S310
    if login:
        token = base64.b64encode(login.read_text(encoding="utf-8").strip().encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise DeniedError(f"{url} wants other credentials", "--login FILE") from None
            raise UnavailableError(f"{url} answers {error.code}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{url} does not answer: {error}") from None
    return found


def rows(series: list[dict[str, Any]], now: float) -> list[Row]:
    """A row for every job and node in Prometheus' answer."""
    samples = Samples()
    for one in series:
        labels = one["metric"]
        metric = BY_NAME.get(labels.get("__name__", ""))
        if metric:
            key = tuple(str(labels.get(name, "")) for name in metric.labels)
            samples.add(metric.name, key, float(one["value"][1]))
    found: list[Row] = []
    for jobid, node, user, account, partition in samples.families.get("carme_job_info", {}):
        if not jobid.isdigit():  # the series that many share
            continue
        ended = samples.value("carme_job_end_timestamp_seconds", jobid, node)
        entry = Entry(
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
        found += board.rows(samples, node, [entry], now)
    return found
