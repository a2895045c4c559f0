"""The exporters of the private cluster, and the virtual GPUs' own record."""

import json
import sys
import time
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from support.cluster import wait_for

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Exporter:
    """The exporter of one node."""

    def __init__(self, cluster: Any, node: str) -> None:
        self.cluster, self.node = cluster, node
        names = [entry.name for entry in cluster.config.local.nodes]
        port = cluster.config.local.ports.exporter_first + names.index(node)
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.part = f"exporter-{node}"
        self.run = cluster.dir / "run/carme"

    @property
    def login(self) -> tuple[str, str]:
        secret = self.cluster.dir / "etc/prometheus/exporter-password"
        return "prometheus", secret.read_text().strip()

    def scrape(self, **headers: str) -> requests.Response:
        return requests.get(self.url, auth=self.login, timeout=10, headers=headers)

    def series(self) -> Series:
        response = self.scrape()
        assert response.status_code == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }

    def values(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        required = set(labels.items())
        return {
            series_labels: value
            for (metric, series_labels), value in self.series().items()
            if metric == name and required <= series_labels
        }

    def total(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels).values())

    def fresh(self) -> float:
        """The time of a collection that began after this call; waits for it."""
        name, asked_at = "carme_exporter_collected_timestamp_seconds", time.time()
        limit = self.cluster.config.exporter.interval_seconds * 2 + 10

        def collected() -> float | None:
            try:
                return next((v for v in self.values(name).values() if v > asked_at), None)
            except requests.ConnectionError:  # it is starting
                return None

        return wait_for(collected, limit, f"{self.part} collects")

    def record(self) -> list[dict[str, Any]]:
        """The virtual GPUs' own spans: ended and open ones."""
        program = [sys.executable, "-m", "carme.local.vgpu.commands"]
        command = [*program, "record", "--run", str(self.run)]
        response = json.loads(self.cluster.run([*command, self.node]).stdout)
        return [*response["ended"], *response["open"]]

    def recorded_joules(self, jobid: int | None) -> float:
        return sum(span["joules"] for span in self.record() if span["jobid"] == jobid)


def submit(cluster: Any, user: str, node: str, script: str, *options: str) -> int:
    """A batch job of `script` on `node`; its id."""
    command = ["sbatch", "--parsable", "-w", node, "-o", "/dev/null", *options, "--wrap", script]
    result = cluster.run_as(user, command)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.split(";")[0])


def wait_ended(cluster: Any, exporter: Exporter, *jobids: int, seconds: float = 60) -> None:
    """Wait until the jobs' epilogs have run."""

    def ended() -> bool:
        spans = exporter.record()
        held = {span["jobid"] for span in _open(spans)}
        recorded = {span["jobid"] for span in spans}
        return all(jobid in recorded and jobid not in held for jobid in jobids)

    wait_for(ended, seconds, f"jobs {jobids} are over")


def _open(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last: dict[int, dict[str, Any]] = {}
    for span in spans:
        if span["gpu"] not in last or span["span"] > last[span["gpu"]]["span"]:
            last[span["gpu"]] = span
    return list(last.values())
