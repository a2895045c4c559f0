"""`{carme-dashboard} UID`: the panels of a dashboard, from the code that generates it."""

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from carme_monitoring.dashboards.model import BOARDS, RECORDED, Dashboard

NEEDS = {
    "rapl": "processors with RAPL",
    "meter": "a meter of the whole node (hwmon, Redfish or IPMI)",
    "infiniband": "InfiniBand",
    "xid": "a driver error",
    "mig": "sliced GPUs",
    "cgroup-v2": "cgroup v2",
    "predictions": "the prediction service",
    "waiting": "a waiting job",
    "profile": "a job with `--comment=carme-profile`",
    "emissions": "`exporter.emissions_grams_per_kwh`",
    "price": "`exporter.price_per_kwh`",
    "alerts": "an alert",
    "failures": "a value that could not be read",
    "jobs": "jobs",
    "gpus": "a node with GPUs",
    "rolled-up": "more jobs than `exporter.series_limit` allows",
}


class DashboardReference(SphinxDirective):
    """A section for each row, a definition for each panel."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        board = next(board for board in BOARDS if board.uid == self.arguments[0])
        return self.parse_text_to_nodes("\n".join(_lines(board)), allow_section_headings=True)


def _lines(board: Dashboard) -> Iterator[str]:
    yield board.text
    yield ""
    for variable in board.variables:
        several = " (multiple values, default all)" if variable.multi else ""
        yield f"Variable: **{variable.title}**{several}, from `{variable.metric}`."
        yield ""
    for row in board.rows:
        yield f"## {row.title}"
        yield ""
        for panel in row.panels:
            yield f"**{panel.title}**"
            yield f": {panel.text}"
            if panel.needs:
                recorded = "; checked on recorded series" if panel.needs in RECORDED else ""
                yield f"  Needs {NEEDS[panel.needs]}{recorded}."
            yield ""
            for query in panel.queries:
                yield f"  `{query.expr}`"
                yield ""


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("carme-dashboard", DashboardReference)
    return {"parallel_read_safe": True}
