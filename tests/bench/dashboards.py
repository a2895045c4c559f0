"""`./dev bench dashboards [--json]`: what dashboards, rules and discovery cost with 1,000 jobs.

A private Prometheus holds the series of 1,000 jobs on 250 nodes and evaluates the recording rules
on them every 15 s. Every query of every dashboard is asked as Grafana would ask it, three times;
the best of the three counts, for other programs on the machine are not the query's fault. Queries
about parts that are not there (Prometheus' and the hub's own metrics, the prediction service) are
checked on the live cluster and on recorded series by tests.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from carme.prometheus import Prometheus
from carme_monitoring.dashboards import promql
from carme_monitoring.dashboards.boards import BOARDS
from carme_monitoring.dashboards.check import Checked, Checker
from carme_monitoring.dashboards.known import PREDICTIONS
from carme_monitoring.dashboards.model import Need, Panel, Query, Row
from carme_monitoring.metrics import TABLE
from support import discovery_load, loaded_prometheus
from support.cluster import wait_for

JOBS = 1000
ROUNDS = 3
LIMIT_MS = 500
# What the dashboards ask for by name, beside what the load has anyway.
_VALUES = {
    "state": ("allocated", "free", "unavailable", "idle", "running", "pending"),
    "mode": ("user", "system", "idle"),
}


def is_here(result: Checked) -> bool:
    """Whether the load has the series that the query names."""
    names = promql.names(result.expr.removeprefix("label_values(")).metrics
    return not any(
        name in PREDICTIONS or name in ("up", "ALERTS") or not name.startswith("carme_")
        for name in names
        if ":" not in name
    )


def only(panel: Panel, of_rules: bool) -> Panel:
    """Rules are evaluated now; the load's own series end when it was made."""

    def uses_rules(query: Query) -> bool:
        return any(":" in name for name in promql.names(query.expr).metrics)

    return replace(panel, queries=tuple(q for q in panel.queries if uses_rules(q) == of_rules))


def ask(prometheus: Prometheus, at: float, of_rules: bool) -> list[Checked]:
    """Every variable, and the panels on rules or the others; the fastest of some rounds."""
    fastest: dict[tuple[str, str, str], Checked] = {}
    for _ in range(ROUNDS):
        checker = Checker(prometheus, at, set(get_args(Need)) - {""}, rate_interval="4m")
        for board in BOARDS:
            panels = [only(panel, of_rules) for panel in board.panels]
            for result in checker.check([replace(board, rows=(Row("", tuple(panels)),))]):
                key = (result.board, result.panel, result.expr)
                known = fastest.get(key)
                if known is None or result.milliseconds < known.milliseconds:
                    fastest[key] = result
    return list(fastest.values())


def bench() -> dict[str, float]:
    """The figures."""
    loaded_prometheus._VALUES.update(_VALUES)
    # Its jobs run.
    running = (metric for metric in TABLE if metric.name != "carme_job_end_timestamp_seconds")
    loaded_prometheus.TABLE = tuple(running)
    with loaded_prometheus.loaded_prometheus(JOBS, evaluate_seconds=15) as url:
        prometheus = Prometheus(url, timeout_seconds=60)
        [newest] = prometheus.query("max(max_over_time(timestamp(carme_node_cpus)[15m:15s]))")
        found = ask(prometheus, newest.value, of_rules=False)
        # The load's samples are current for five minutes: these before the figures of the rules.
        for last in ("cluster:carme_cpu_idle_ratio:avg5m", "cluster:carme_cpu_idle_ratio:avg1h"):
            wait_for(lambda last=last: prometheus.query(last), 240, f"the rules up to {last}")
        found += ask(prometheus, time.time(), of_rules=True)
        rules = loaded_prometheus.rule_durations(url)
    found = list({(r.board, r.panel, r.expr): r for r in found}.values())
    wrong = [result for result in found if not result.is_fine and is_here(result)]
    for result in wrong:
        said = (result.status, result.board, result.panel, result.expr, result.note)
        print(*said, file=sys.stderr)
    found.sort(key=lambda result: result.milliseconds)
    for result in found[-5:]:
        where = f"{result.board}: {result.panel}"
        print(f"{result.milliseconds:6.0f} ms  {where}: {result.expr}", file=sys.stderr)
    return {
        "panels": sum(1 for board in BOARDS for _ in board.panels),
        "queries_checked": len(found),
        "empty": len(wrong),
        "slowest_query_ms": round(found[-1].milliseconds, 1),
        "discovery_10000_nodes_ms": round(discovery_load.discovery_ms(), 1),
        "rules_eval_ms_1000_jobs": round(sum(rules.values()), 1),
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
