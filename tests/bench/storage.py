"""`./dev bench storage PAGE`: what a node's series cost Prometheus in memory and on disk.

PAGE is what an exporter answered (`curl -u … http://NODE:9401/metrics > PAGE`). A private
Prometheus reads it as that of 40 nodes and then of 120, each for as long as a chunk takes to fill
(120 samples, here every second or two); the difference between the two is the cost of the further
nodes. The rules are evaluated as usual. As on a busy node, every counter grows by random amounts.
"""

import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from carme.prometheus import PrometheusClient
from carme.templates import PROMETHEUS_RULES, prometheus_rules
from support.page_server import served
from support.recorded_series import serving

NODES = (40, 120)
SCRAPE_SECONDS = 2
SAMPLES = 130
_LINE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$")
_CONFIG = """
global: {{scrape_interval: {scrape}s, scrape_timeout: {scrape}s, evaluation_interval: 30s}}
rule_files: [{rules}/*.yml]
scrape_configs:
  - job_name: carme
    honor_labels: true
    metrics_path: /metrics
    static_configs:
"""
_TARGET = """
      - targets: ["{address}"]
        labels: {{__param_node: "n{node}", node: "n{node}", instance: "n{node}", cluster: c}}
"""


class Page:
    """An exporter's page, replayed for other nodes and later times."""

    def __init__(self, text: str) -> None:
        info = re.search(r'carme_exporter_info\{[^}]*node="([^"]+)"', text)
        if not info:
            raise SystemExit("the page is not an exporter's: it has no carme_exporter_info")
        self._node = info[1]
        self._parts = [m.groups() for line in text.splitlines() if (m := _LINE.match(line))]
        self._heads: dict[str, list[tuple[str, str, float]]] = {}
        self.series = len(self._parts)

    def of(self, node: str, seconds: float) -> bytes:
        """The page of a node after a number of seconds."""
        if node not in self._heads:
            self._heads[node] = list(self._named(node))
        return "".join(
            f"{head} {value + seconds * 100 * random.random():.3f}\n"
            if kind == "counter"
            else f"{head} {value * (1 + random.random() / 10):.4g}\n"
            if kind == "moving"
            else f"{head} {value!r}\n"
            for head, kind, value in self._heads[node]
        ).encode()

    def _named(self, node: str) -> Iterator[tuple[str, str, float]]:
        """A node's jobs and cards are its own."""
        for name, labels, value in self._parts:
            node_labels = (labels or "").replace(f'"{self._node}"', f'"{node}"')
            node_labels = re.sub(r'(jobid|uuid)="([^"]*)"', rf'\1="\2{node}"', node_labels)
            moving = name.endswith(("_watts", "_ratio", "_celsius"))
            kind = "counter" if name.endswith("_total") else "moving" if moving else "still"
            yield name + node_labels, kind, float(value)


def measure(page: Page, nodes: int) -> dict[str, float]:
    """Series and memory of a Prometheus with this number of nodes."""
    with tempfile.TemporaryDirectory(prefix="carme-storage-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        (folder / "data").mkdir()
        (folder / "rules").mkdir()
        for name in PROMETHEUS_RULES:
            (folder / "rules" / name).write_text(prometheus_rules(name))
        start = time.monotonic()
        with served(lambda query: page.of(query["node"], time.monotonic() - start)) as address:
            config = _CONFIG.format(scrape=SCRAPE_SECONDS, rules=folder / "rules")
            config += "".join(_TARGET.format(address=address, node=n) for n in range(nodes))
            config += '  - job_name: self\n    static_configs: [{targets: ["@self"]}]\n'
            with serving(folder / "data", config) as prometheus:
                began = time.monotonic()
                while _value(prometheus, "count_over_time(carme_node_cpus[1h])") < SAMPLES:
                    time.sleep(5)
                    if time.monotonic() - began > 8 * SAMPLES * SCRAPE_SECONDS:
                        raise RuntimeError("the machine is too busy to be measured on")
                return {
                    "series": _value(prometheus, "prometheus_tsdb_head_series"),
                    "memory_bytes": _value(
                        prometheus, "max_over_time(process_resident_memory_bytes[2m])"
                    ),
                    "heap_bytes": _value(prometheus, "min_over_time(go_memstats_alloc_bytes[2m])"),
                }


def _value(prometheus: PrometheusClient, expression: str) -> float:
    return max((row.value for row in prometheus.query(expression)), default=0.0)


def main() -> None:
    """Print what a series costs."""
    page = Page(Path(sys.argv[1]).read_text(encoding="utf-8"))
    few, many = (measure(page, nodes) for nodes in NODES)
    extra_series = many["series"] - few["series"]
    figures = {
        "series_of_the_page": page.series,
        "series_per_node_with_rules": round(extra_series / (NODES[1] - NODES[0]), 1),
        "resident_bytes_per_series": round(
            (many["memory_bytes"] - few["memory_bytes"]) / extra_series
        ),
        "live_bytes_per_series": round((many["heap_bytes"] - few["heap_bytes"]) / extra_series),
        "nodes": dict(zip(map(str, NODES), (few, many), strict=True)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
