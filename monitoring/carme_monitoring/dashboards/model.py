"""What a dashboard is: rows of panels, each with its queries and a text on what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

Kind = Literal["stat", "timeseries", "table", "bars"]
Need = Literal[
    "", "rapl", "meter", "infiniband", "xid", "mig", "cgroup-v2", "predictions",
    "waiting", "profile", "emissions", "price", "alerts", "failures", "jobs", "gpus", "rolled-up",
]  # fmt: skip
"""What must be there for a panel to show anything: hardware, a setting, or something that is not
always the case, such as a job that waits."""
RECORDED: frozenset[Need] = frozenset({"rapl", "meter", "infiniband", "xid", "mig", "cgroup-v2"})
"""What the one-machine cluster cannot have: these panels are checked on recorded series."""

POINTS = 300
"""Values of a series that a panel asks for: more than it has room for would only cost."""
MIN_STEP_SECONDS = 30
"""The least time between two values. Grafana rounds a step to 10, 15, 20, 30 seconds, a minute and
so on. From 30 seconds on all are multiples of the scrape interval of 15 seconds. A step that is
not would show a constant power as a saw-tooth."""


@dataclass(frozen=True)
class Query:
    """PromQL and how its series are called; `{{label}}` in a legend is the label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class DashboardLink:
    """Where a click on a value leads, as dashboard and (variable, label)."""

    uid: str
    variable: str
    label: str


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    text: str
    """What it shows, and what to do when it looks wrong."""
    unit: str = "short"
    """Grafana's name of the unit."""
    warn: float | None = None
    alarm: float | None = None
    """From here on yellow, red; where `alarm` is below `warn`, down to here."""
    most: float | None = None
    """The end of the scale."""
    width: int = 8
    height: int = 7
    stack: bool = False
    link: DashboardLink | None = None
    needs: Need = ""

    @property
    def is_instant(self) -> bool:
        return self.kind != "timeseries"


def step_seconds(span_seconds: float) -> int:
    """The step of a plot over `span_seconds`: the least multiple of the minimum with few enough
    points."""
    return MIN_STEP_SECONDS * max(1, ceil(span_seconds / POINTS / MIN_STEP_SECONDS))


@dataclass(frozen=True)
class PanelRow:
    """Panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    title: str
    metric: str
    """A metric, with matchers if need be."""
    label: str
    multi: bool = False
    """Several at once, and all of them at first."""

    @property
    def query(self) -> str:
        return f"label_values({self.metric}, {self.label})"


@dataclass(frozen=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    text: str
    """Who opens it, and which question it answers."""
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = ()
    hours: int = 6
    """The span that it opens with."""

    @property
    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels


def stat(title: str, expr: str, text: str, unit: str = "short", **more: object) -> Panel:
    """A single number."""
    given = {"width": 4, "height": 4, **more}
    return Panel(title, "stat", (Query(expr),), text, unit, **given)  # type: ignore[arg-type]


def lines(
    title: str, text: str, *queries: tuple[str, str], unit: str = "short", **more: object
) -> Panel:
    """Series over time, each query with its legend."""
    made = tuple(Query(expr, legend) for expr, legend in queries)
    return Panel(title, "timeseries", made, text, unit, **more)  # type: ignore[arg-type]


def bars(
    title: str, text: str, expr: str, legend: str, unit: str = "short", **more: object
) -> Panel:
    """A bar for each series, now."""
    return Panel(title, "bars", (Query(expr, legend),), text, unit, **more)  # type: ignore[arg-type]


def table(title: str, text: str, *queries: tuple[str, str], **more: object) -> Panel:
    """A line for each series; a column for each query, with the legend as its heading."""
    made = tuple(Query(expr, legend) for expr, legend in queries)
    given = {"width": 24, "height": 9, **more}
    return Panel(title, "table", made, text, **given)  # type: ignore[arg-type]
