"""A private Prometheus with the series of a cluster that runs a thousand jobs.

It scrapes them as it would scrape exporters, evaluates Carme's rules on them, and has a history in
blocks of `promtool tsdb create-blocks-from openmetrics`.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from carme.prometheus import PrometheusClient
from carme.templates import PROMETHEUS_RULES, prometheus_rules
from support.load import SCRAPE_SECONDS, Load, filled, page
from support.page_server import served
from support.recorded_series import add_blocks, serving

_CONFIG = """
global: {{scrape_interval: {scrape}s, scrape_timeout: {scrape}s, evaluation_interval: {evaluate}s}}
rule_files: [{rules}/*.yml]
scrape_configs:
  - job_name: load
    honor_labels: true
    static_configs: [{{targets: ["{load}"]}}]
  - job_name: prometheus
    static_configs: [{{targets: ["@self"]}}]
"""


@contextmanager
def loaded_prometheus(load: Load, evaluate_seconds: float) -> Iterator[PrometheusClient]:
    """A Prometheus with these series, which evaluates Carme's rules on them."""
    for name in ("prometheus", "promtool"):
        if not shutil.which(name):
            raise SystemExit(f"needs {name}: apt-get install prometheus")
    # Not below /tmp, which is in memory on some machines: a history has gigabytes of text.
    with tempfile.TemporaryDirectory(prefix="carme-load-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        data, rules = folder / "data", folder / "rules"
        data.mkdir()
        rules.mkdir()
        for file in load.history(folder):
            add_blocks(file, data)
        for name in PROMETHEUS_RULES:
            (rules / name).write_text(prometheus_rules(name))
        text = page(load.scraped())
        with served(lambda _: filled(text, time.time())) as address:
            config = _CONFIG.format(
                scrape=SCRAPE_SECONDS, evaluate=round(evaluate_seconds), rules=rules, load=address
            )
            with serving(data, config) as prometheus:
                yield prometheus


@dataclass(frozen=True)
class Cost:
    """The duration of an evaluation of a group of rules."""

    milliseconds: float
    """Median of its evaluations."""
    dearest: tuple[tuple[float, str], ...]
    """Its five dearest rules, in milliseconds, in the last evaluation."""


def rule_costs(prometheus: PrometheusClient, evaluations: int = 3) -> dict[str, Cost]:
    """The cost of each group of recording rules, over a number of evaluations from now on."""
    times: dict[str, dict[str, float]] = {}
    last: dict[str, tuple[tuple[float, str], ...]] = {}
    end = time.monotonic() + 600
    while not times or min(len(durations) for durations in times.values()) < evaluations:
        if time.monotonic() > end:
            raise RuntimeError(f"the rules were not evaluated {evaluations} times in ten minutes")
        time.sleep(1)
        response = requests.get(f"{prometheus.url}/api/v1/rules?type=record", timeout=30).json()
        for group in response["data"]["groups"]:
            if not group["rules"] or group["evaluationTime"] == 0:
                continue
            durations = times.setdefault(group["name"], {})
            durations[group["lastEvaluation"]] = group["evaluationTime"] * 1000
            rules = ((r["evaluationTime"] * 1000, r["name"]) for r in group["rules"])
            last[group["name"]] = tuple(sorted(rules, reverse=True)[:5])
    return {
        name: Cost(statistics.median(durations.values()), last[name])
        for name, durations in times.items()
    }
