"""`./dev bench dashboards [--json]`: what dashboards, rules and discovery cost with 1,000 jobs.

A private Prometheus holds the series of 1,000 jobs on 250 nodes and evaluates the recording rules
on them. Every query of every dashboard is asked as Grafana would ask it, three times; what counts
is the slowest of the three. Queries about parts that are not there (Prometheus' and the hub's own
metrics, the prediction service) are checked on the live cluster and on recorded series by tests.
"""

import json
import sys
import time
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import discovery_load, loaded_prometheus

from carme.prometheus import Prometheus
from carme_monitoring.dashboards import promql
from carme_monitoring.dashboards.boards import BOARDS
from carme_monitoring.dashboards.check import Checked, Checker
from carme_monitoring.dashboards.known import PREDICTIONS
from carme_monitoring.dashboards.model import Need

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


def bench() -> dict[str, float]:
    """The figures."""
    loaded_prometheus._VALUES.update(_VALUES)
    with loaded_prometheus.loaded_prometheus(JOBS) as url:
        rules = loaded_prometheus.rule_durations(url)
        prometheus = Prometheus(url, timeout_seconds=60)
        rounds = []
        for _ in range(ROUNDS):
            checker = Checker(prometheus, time.time(), set(get_args(Need)) - {""})
            rounds.append(list(checker.check(BOARDS)))
            time.sleep(2)
    slowest = {
        (result.board, result.panel, result.expr): result.milliseconds
        for result in sorted(sum(rounds, []), key=lambda result: result.milliseconds)
    }
    wrong = [result for result in rounds[-1] if not result.is_fine and is_here(result)]
    for result in wrong:
        said = (result.status, result.board, result.panel, result.expr, result.note)
        print(*said, file=sys.stderr)
    for (board, panel, expr), spent in list(slowest.items())[-5:]:
        print(f"{spent:6.0f} ms  {board}: {panel}: {expr}", file=sys.stderr)
    return {
        "panels": sum(1 for board in BOARDS for _ in board.panels),
        "queries_checked": len(rounds[-1]),
        "empty": len(wrong),
        "slowest_query_ms": round(max(slowest.values()), 1),
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
