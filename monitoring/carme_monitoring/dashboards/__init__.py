"""Grafana's dashboards as code.

`model` is what a dashboard is, a module for each dashboard says what is on it, `grafana` writes
the JSON, and `check` runs every query against a Prometheus.
"""
