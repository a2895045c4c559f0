"""`./dev bench dashboards [--json]`: what dashboards, rules and discovery cost with 1,000 jobs.

A private Prometheus scrapes the series of 1,000 jobs on 250 nodes every 15 s and evaluates the
rules on them. Metrics that a dashboard shows over time have a history as long as its span.
Every query of every dashboard is sent as Grafana would send it, in five rounds; a query's time is
the median of the five, and the slowest query's counts. A group of rules takes the median of three
evaluations; the groups' sum counts. Queries about services that are not there (hub,
prediction service) are checked on the live cluster by tests.
"""

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from carme.config import Config
from carme.prometheus import PrometheusClient
from carme_monitoring.dashboards import promql
from carme_monitoring.dashboards.check import Checked, Checker
from carme_monitoring.dashboards.model import BOARDS, Need
from support import discovery_load
from support.cluster import wait_for
from support.generators import recording_rules
from support.load import Load
from support.loaded_prometheus import loaded_prometheus, rule_costs

JOBS = 1000
ROUNDS = 5
LIMIT_MS = 500
_ELSEWHERE = ("up", "ALERTS", "jupyterhub_", "process_", "carme_service_", "carme_prediction_",
              "carme_view_")  # fmt: skip
"""Metrics that only a whole cluster has."""


def spans() -> dict[str, float]:
    """The hours over which a dashboard shows each metric."""
    hours_by_metric: dict[str, float] = {}
    for board in BOARDS:
        for query in (q for panel in board.panels if not panel.is_instant for q in panel.queries):
            for name in promql.names(query.expr).metrics:
                hours_by_metric[name] = max(hours_by_metric.get(name, 0), board.hours)
    return hours_by_metric


def is_here(result: Checked) -> bool:
    """Whether the load has the series that the query names."""
    names = promql.names(result.expr.removeprefix("label_values(")).metrics
    return not any(name.startswith(_ELSEWHERE) for name in names)


def ask(prometheus: PrometheusClient) -> list[Checked]:
    """Every query, with the median of its times; the worst answer of the rounds."""
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    results: dict[tuple[str, str, str], Checked] = {}
    for _ in range(ROUNDS):
        checker = Checker(prometheus, None, set(get_args(Need)) - {""})
        for result in checker.check(BOARDS):
            key = (result.board, result.panel, result.expr)
            times[key].append(result.milliseconds)
            if key not in results or results[key].is_fine:
                results[key] = result
    slowest = max(max(milliseconds) for milliseconds in times.values())
    print(f"the slowest single answer of all took {slowest:.0f} ms", file=sys.stderr)
    return [replace(r, milliseconds=statistics.median(times[key])) for key, r in results.items()]


def rules_ms(prometheus: PrometheusClient) -> float:
    """Milliseconds of one evaluation of all recording rules; prints the share of the time."""
    default_seconds = Config().prometheus.evaluation_seconds
    total = share = 0.0
    for name, cost in rule_costs(prometheus).items():
        interval_seconds = recording_rules.groups()[name][0] or default_seconds
        total += cost.milliseconds
        share += cost.milliseconds / interval_seconds
        dearest = ", ".join(f"{rule} {ms:.0f}" for ms, rule in cost.dearest[:3])
        print(
            f"{cost.milliseconds:6.0f} ms every {interval_seconds:.0f} s  {name}: {dearest}",
            file=sys.stderr,
        )
    print(f"the rules take {share * 15:.0f} ms of every 15 s", file=sys.stderr)
    return total


def bench() -> dict[str, float]:
    """The figures."""
    load = Load(time.time(), JOBS, spans())
    print(f"load of the machine: {os.getloadavg()}", file=sys.stderr)
    with loaded_prometheus(load, Config().prometheus.evaluation_seconds) as prometheus:
        last = "cluster_component:carme_power_watts:avg1h"
        wait_for(lambda: prometheus.query(f"timestamp({last}) > {time.time() - 60}"), 240, last)
        rules = rules_ms(prometheus)
        results = ask(prometheus)
    failed = [result for result in results if not result.is_fine and is_here(result)]
    for result in failed:
        said = (result.status, result.board, result.panel, result.expr, result.note)
        print(*said, file=sys.stderr)
    results.sort(key=lambda result: result.milliseconds)
    for result in results[-5:]:
        panel = f"{result.board}: {result.panel}"
        print(f"{result.milliseconds:6.0f} ms  {panel}: {result.expr}", file=sys.stderr)
    print(f"load of the machine: {os.getloadavg()}", file=sys.stderr)
    return {
        "panels": sum(1 for board in BOARDS for _ in board.panels),
        "queries_checked": len(results),
        "empty": len(failed),
        "slowest_query_ms": round(results[-1].milliseconds, 1),
        "discovery_10000_nodes_ms": round(discovery_load.discovery_ms(), 1),
        "rules_eval_ms_1000_jobs": round(rules, 1),
    }


def main() -> None:
    """Print the figures; with --json as one object. Exit 1 if a query is empty or too slow."""
    figures = bench()
    if "--json" in sys.argv:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")
    sys.exit(figures["empty"] > 0 or figures["slowest_query_ms"] > LIMIT_MS)


if __name__ == "__main__":
    main()
