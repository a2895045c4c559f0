"""Grafana's dashboards: a TOML file for each, and one for the queries of each profile.

`model` reads the files, `grafana` writes Grafana's JSON, and `check` runs every query against a
Prometheus.
"""
