"""Writes monitoring/grafana/dashboards, for the default scrape interval."""

from pathlib import Path

from carme.config import PrometheusSettings
from carme_monitoring.dashboards import grafana

FOLDER = Path(__file__).parents[1] / "grafana/dashboards"

if __name__ == "__main__":
    grafana.write(FOLDER, PrometheusSettings().scrape_seconds)
