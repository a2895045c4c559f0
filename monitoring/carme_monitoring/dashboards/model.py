"""Dashboards: rows of panels, each with its queries and a text on what to do about it."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from math import ceil
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

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
"""Values of a series that a panel asks for: a panel has no room for more."""
_MIN_STEP_SECONDS = 30
_SIZES: Mapping[str, tuple[int, int]] = {"stat": (4, 4), "table": (24, 9)}
"""Width and height of panels by kind, in cells of Grafana's grid of 24 columns."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Query(NamedTuple):
    """PromQL and how its series are called; `{{label}}` in a legend is the label's value."""

    expr: str
    legend: str = ""


class DashboardLink(_Section):
    """Where a click on a value leads: a dashboard, with its variable `label` set to the label."""

    uid: str
    label: str


class Panel(_Section):
    """One plot, table or number."""

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    text: str
    """What it shows, and what to do when it looks wrong."""
    unit: str = "short"
    """Grafana's name of the unit."""
    warn: int | float | None = None
    alarm: int | float | None = None
    """From here on yellow, red; where `alarm` is below `warn`, down to here."""
    max: int | float | None = None
    """The end of the scale."""
    width: int = 8
    height: int = 7
    stack: bool = False
    link: DashboardLink | None = None
    needs: Need = ""

    @model_validator(mode="before")
    @classmethod
    def _size_of_kind(cls, panel: Mapping[str, Any]) -> dict[str, Any]:
        width, height = _SIZES.get(panel["kind"], (8, 7))
        return {"width": width, "height": height, **panel}

    @property
    def is_instant(self) -> bool:
        return self.kind != "timeseries"


class PanelRow(_Section):
    """Panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(_Section):
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


class Dashboard(_Section):
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


def min_step_seconds(scrape_seconds: float) -> int:
    """The least time between two values of a panel: whole scrape intervals, at least two.

    A step that is no multiple of the scrape interval shows a constant power as a saw-tooth. Grafana
    rounds longer steps to a minute, two, five and so on, which are multiples of every interval that
    divides a minute; carme.toml takes no other.
    """
    interval = round(scrape_seconds)  # as in prometheus.yml
    return interval * max(2, ceil(_MIN_STEP_SECONDS / interval))


def step_seconds(span_seconds: float, scrape_seconds: float) -> int:
    """The step of a plot over `span_seconds`, with at most POINTS values."""
    least = min_step_seconds(scrape_seconds)
    return least * max(1, ceil(span_seconds / POINTS / least))


def _load(name: str) -> Dashboard:
    text = (files("carme_monitoring.dashboards") / f"{name}.toml").read_text(encoding="utf-8")
    return Dashboard.model_validate(tomllib.loads(text))


BOARDS = tuple(
    map(_load, ("cluster", "queue", "node", "job", "user", "energy", "waste", "predictions",
                "health"))
)  # fmt: skip
"""Every dashboard, in the order of the menu."""
PROFILE_BOARDS = {
    name: _load(f"profiles/{name}") for name in ("dcgm", "nvidia-gpu", "cgroup", "slurm-exporter")
}
"""Queries of dashboards made for other exporters, to check the exporter's profiles with."""
