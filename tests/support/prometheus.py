"""The private cluster's Prometheus and Alertmanager, queried as an admin."""

import json
from typing import Any

import requests

Row = dict[str, Any]


class Prometheus:
    """Runs queries."""

    def __init__(self, cluster: Any) -> None:
        self._secrets = json.loads((cluster.dir / "etc/secrets/secrets.json").read_text())
        self.url = f"http://127.0.0.1:{cluster.config.local.ports.prometheus}"
        self.alertmanager = f"http://127.0.0.1:{cluster.local.layout.ports()['alertmanager']}"

    def rows(self, expression: str, at: float | None = None) -> list[Row]:
        """The series of the expression, now or at a given time."""
        params = {"query": expression, **({"time": str(at)} if at else {})}
        login = ("carme", self._secrets["prometheus_password"])
        url = f"{self.url}/api/v1/query"
        response = requests.get(url, params=params, auth=login, timeout=30)
        assert response.status_code == 200, response.text
        series: list[Row] = response.json()["data"]["result"]
        return series

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The value of the only series; None if there is none."""
        rows = self.rows(expression, at)
        assert len(rows) <= 1, rows
        return float(rows[0]["value"][1]) if rows else None

    def by(self, label: str, expression: str, at: float | None = None) -> dict[str, float]:
        """Values by a label."""
        rows = self.rows(expression, at)
        return {row["metric"].get(label, ""): float(row["value"][1]) for row in rows}

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts in Alertmanager."""
        login = ("carme", self._secrets["alertmanager_password"])
        response = requests.get(f"{self.alertmanager}/api/v2/alerts", auth=login, timeout=10)
        assert response.status_code == 200, response.text
        alerts: list[dict[str, Any]] = response.json()
        return alerts
