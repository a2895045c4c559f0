"""Runs every panel's and variable's query against a Prometheus, and says what is wrong with each.

A panel is empty only if it is so for every value of the dashboard's variable: a node without GPUs
has no GPU's temperature.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from carme.errors import CarmeError, InputError
from carme.prometheus import PrometheusClient
from carme_monitoring.dashboards import promql
from carme_monitoring.dashboards.model import (
    Dashboard,
    Need,
    Panel,
    Query,
    Variable,
    step_seconds,
)

Status = Literal["ok", "empty", "not here", "error", "unknown", "padded"]
_TRIES = 25
"""Values of a variable that are tried at most."""


@dataclass(frozen=True)
class Checked:
    """The result of one query."""

    board: str
    panel: str
    expr: str
    status: Status
    rows: int = 0
    milliseconds: float = 0
    note: str = ""
    needs: Need = ""

    @property
    def is_fine(self) -> bool:
        return self.status in ("ok", "not here")


class Checker:
    """Checks dashboards against one Prometheus, at one moment."""

    def __init__(
        self,
        prometheus: PrometheusClient,
        at: float | None = None,
        required: Iterable[Need] = (),
        scrape_seconds: float = 15,
    ) -> None:
        self._prometheus = prometheus
        self._at = time.time() if at is None else at
        self._required = frozenset(required)
        """Needs that are met here: a panel with one of them may not be empty."""
        self._scrape_seconds = scrape_seconds
        self._macros = {"__rate_interval": f"{4 * round(scrape_seconds)}s"}
        """As Grafana works it out: four times the scrape interval."""
        self._labels: dict[str, frozenset[str]] = {}

    def check(self, boards: Iterable[Dashboard]) -> Iterator[Checked]:
        """A result for every query of every variable and panel."""
        for board in boards:
            values: dict[str, tuple[str, ...]] = {}
            for variable in board.variables:
                result, values[variable.name] = self._variable(board, variable, values)
                yield result
            for panel in board.panels:
                for query in panel.queries:
                    yield self._query(board, panel, query, values)

    def _variable(
        self, board: Dashboard, variable: Variable, chosen: dict[str, tuple[str, ...]]
    ) -> tuple[Checked, tuple[str, ...]]:
        started = time.perf_counter()
        label, note = f"${variable.name}", ""
        values: tuple[str, ...] = ()
        try:
            metric = fill(variable.metric, {name: labels[0] for name, labels in chosen.items()})
            values = self._prometheus.label_values(variable.label, (metric,))
        except CarmeError as error:
            note = error.message
        status: Status = "ok" if values else "error" if note else "empty"
        milliseconds = (time.perf_counter() - started) * 1000
        result = Checked(board.uid, label, variable.query, status, len(values), milliseconds, note)
        if variable.multi:
            return result, (".+",)
        # The newest jobs have the highest numbers, and something to show.
        return result, tuple(reversed(values))[:_TRIES] or ("",)

    def _query(
        self, board: Dashboard, panel: Panel, query: Query, values: dict[str, tuple[str, ...]]
    ) -> Checked:
        def result(
            status: Status, rows: int = 0, milliseconds: float = 0, note: str = ""
        ) -> Checked:
            return Checked(
                board.uid, panel.title, query.expr, status, rows, milliseconds, note, panel.needs
            )

        if promql.is_padded(query.expr):
            return result("padded", note="it returns a value even without series")
        try:
            rows, milliseconds = self._ask(board, panel, query, values)
        except InputError as error:
            return result("error", note=error.message)
        if rows:
            odd = self._odd_label(query)
            return result("unknown" if odd else "ok", rows, milliseconds, odd)
        if panel.needs and panel.needs not in self._required:
            return result("not here", 0, milliseconds, f"needs {panel.needs}")
        missing = [name for name in promql.names(query.expr).metrics if not self._labels_of(name)]
        note = f"nobody exports {', '.join(missing)}" if missing else ""
        return result("unknown" if missing else "empty", 0, milliseconds, note)

    def _ask(
        self, board: Dashboard, panel: Panel, query: Query, values: dict[str, tuple[str, ...]]
    ) -> tuple[int, float]:
        """Series in the answer, and the time of the slowest try."""
        slowest = 0.0
        for choice in _choices(query.expr, values):
            expr = fill(query.expr, {**self._macros, **choice})
            started = time.perf_counter()
            if panel.is_instant:
                rows = len(self._prometheus.query(expr, self._at))
            else:
                span = board.hours * 3600
                step = step_seconds(span, self._scrape_seconds)
                series = self._prometheus.query_range(expr, self._at - span, self._at, step)
                rows = len(series)
            slowest = max(slowest, (time.perf_counter() - started) * 1000)
            if rows:
                return rows, slowest
        return 0, slowest

    def _labels_of(self, metric: str) -> frozenset[str]:
        if metric not in self._labels:
            labels = self._prometheus.label_names((metric,))
            self._labels[metric] = frozenset(labels)
        return self._labels[metric]

    def _odd_label(self, query: Query) -> str:
        """A label that the query, or its legend, expects and that no series has."""
        names = promql.names(query.expr)
        for metric, labels in names.metrics.items():
            if odd := sorted(labels - self._labels_of(metric)):
                return f"{metric} has no label {', '.join(odd)}"
        have = frozenset[str]().union(*(self._labels_of(metric) for metric in names.metrics))
        odd = sorted((names.grouping | promql.legend_labels(query.legend)) - have)
        return f"no metric of it has the label {', '.join(odd)}" if odd else ""


def _choices(expr: str, values: dict[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """The values to try: of the one variable that the query has."""
    used = [name for name in values if f"${name}" in expr]
    if not used:
        yield {}
        return
    fixed = {name: values[name][0] for name in used}
    for value in values[used[0]]:
        yield {**fixed, used[0]: value}


def fill(expr: str, values: dict[str, str]) -> str:
    """The query as Grafana would send it."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    return expr
