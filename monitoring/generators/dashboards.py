"""Writes monitoring/grafana/dashboards, from the dashboards in carme_monitoring."""

from pathlib import Path

from carme_monitoring.dashboards import grafana

FOLDER = Path(__file__).parents[1] / "grafana/dashboards"

if __name__ == "__main__":
    grafana.write(FOLDER)
