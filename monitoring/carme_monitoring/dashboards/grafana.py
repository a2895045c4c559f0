"""The dashboards in Grafana's own form."""

import json
from pathlib import Path
from typing import Any

from carme_monitoring.dashboards.model import (
    BOARDS,
    POINTS,
    Dashboard,
    Panel,
    Variable,
    min_step_seconds,
)

SCHEMA_VERSION = 39
"""Grafana 10.3 and newer; later ones bring it up to date by themselves."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_KINDS = {"stat": "stat", "timeseries": "timeseries", "table": "table", "bars": "bargauge"}


def dashboard(board: Dashboard, scrape_seconds: float) -> dict[str, Any]:
    """The JSON model of a dashboard, for a Prometheus that scrapes every `scrape_seconds`."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["carme"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "refresh": "1m",
        "time": {"from": f"now-{board.hours}h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "links": [
            {
                "title": "Carme",
                "type": "dashboards",
                "tags": ["carme"],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": False,
            }
        ],
        "templating": {"list": [_SOURCE_VARIABLE, *map(_variable, board.variables)]},
        "annotations": {"list": []},
        "panels": _panels(board, f"{min_step_seconds(scrape_seconds)}s"),
    }


_SOURCE_VARIABLE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 3,
        "multi": variable.multi,
        "includeAll": variable.multi,
        **({"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
           if variable.multi else {}),
    }  # fmt: skip


def _panels(board: Dashboard, min_step: str) -> list[dict[str, Any]]:
    """Rows from top to bottom, panels from left to right as far as they fit."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "gridPos": place,
                "panels": [],
            }
        )
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > 24:
                y, x, tallest = y + tallest, 0, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, len(panels) + 1, place, min_step))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int], min_step: str) -> dict[str, Any]:
    model: dict[str, Any] = {
        "id": number,
        "type": _KINDS[panel.kind],
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": panel.is_instant,
                "range": not panel.is_instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
        "maxDataPoints": POINTS,
        "interval": min_step,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }
    if panel.kind == "table":
        model["transformations"] = _columns(panel)
    return model


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        # An empty answer means that there is nothing to count; it is no error.
        "noValue": "none",
        "min": 0,
    }
    if panel.max is not None:
        defaults["max"] = panel.max
    if panel.link:
        label = panel.link.label
        fields = "__data.fields" if panel.kind == "table" else "__field.labels"
        value = f"${{{fields}.{label}}}"
        url = f"/d/{panel.link.uid}?var-{label}={value}&${{__url_time_range}}"
        defaults["links"] = [{"title": f"Open {label} {value}", "url": url}]
    if panel.kind == "timeseries":
        mode = "normal" if panel.stack else "none"
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 30 if panel.stack else 8,
            "showPoints": "never",
            "stacking": {"mode": mode, "group": "A"},
        }
    return defaults


def _steps(panel: Panel) -> list[dict[str, Any]]:
    warn, alarm = panel.warn, panel.alarm
    if warn is not None and alarm is not None and alarm < warn:
        # Low is bad: red below alarm, yellow below warn.
        return [
            {"color": "red", "value": None},
            {"color": "yellow", "value": alarm},
            {"color": "green", "value": warn},
        ]
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": "yellow", "value": warn}] if warn is not None else []
    steps += [{"color": "red", "value": alarm}] if alarm is not None else []
    return steps


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "table":
        return {"showHeader": True}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    options: dict[str, Any] = {"reduceOptions": reduce, "orientation": "auto"}
    if panel.kind == "bars":
        return {
            **options,
            "displayMode": "basic",
            "orientation": "horizontal",
            "showUnfilled": True,
        }
    return {**options, "colorMode": "value", "graphMode": "none", "textMode": "auto"}


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Queries side by side, joined by their labels; a column's heading is its query's legend."""
    names = {f"Value #{chr(ord('A') + i)}": q.legend for i, q in enumerate(panel.queries)}
    if len(panel.queries) == 1:
        names = {"Value": panel.queries[0].legend}
    hidden = dict.fromkeys(("Time", "cluster", "job", "instance", "__name__"), True)
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}},
    ]


def texts(scrape_seconds: float) -> dict[str, str]:
    """File name → content, for every dashboard."""
    models = {board.uid: dashboard(board, scrape_seconds) for board in BOARDS}
    return {
        f"{uid}.json": json.dumps(model, indent=2, ensure_ascii=False) + "\n"
        for uid, model in models.items()
    }


def write(folder: Path, scrape_seconds: float) -> None:
    """Write all of them to `folder`; files of dashboards that no longer exist are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = texts(scrape_seconds)
    for old in folder.glob("*.json"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
