"""The dashboards: generated files, what their queries name, and panels on recorded series."""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from click.testing import CliRunner

from carme.config import Config
from carme.errors import InputError
from carme.templates import render
from carme_monitoring.dashboards import grafana, promql
from carme_monitoring.dashboards.check import Checker
from carme_monitoring.dashboards.commands import chosen, dashboards
from carme_monitoring.dashboards.model import (
    BOARDS,
    POINTS,
    PROFILE_BOARDS,
    RECORDED,
    Dashboard,
    Panel,
    PanelRow,
    min_step_seconds,
    step_seconds,
)
from carme_monitoring.pipeline import BY_NAME, TABLE
from carme_monitoring.profiles import PROFILES, tables
from support.generators import metrics_reference, recording_rules
from support.recorded_series import blocks, line, serving

from .conftest import series_of

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "monitoring/grafana/dashboards"
SCRAPE_SECONDS = Config().prometheus.scrape_seconds
_TARGET = frozenset({"job", "instance", "node", "cluster"})
"""What Prometheus adds to every series of a node's exporter."""
_OTHERS = ("jupyterhub_", "prometheus_", "process_", "scrape_", "alertmanager_")
_EXPORTED = {
    **{
        m.name: _TARGET | {*m.labels}
        for m in (*TABLE, *metrics_reference.SERVICE, *tables(PROFILES))
    },
    **{
        rule.record: frozenset(rule.labels)
        for _, rules in recording_rules.groups().values()
        for rule in rules
    },
    **{
        f"{m.name}_bucket": _TARGET | {*m.labels, "le"}
        for m in metrics_reference.SERVICE
        if m.kind == "histogram"
    },
    "up": _TARGET,
}
"""The labels of every series of the exporter, its profiles and the recording rules."""
needs_prometheus = pytest.mark.skipif(
    not shutil.which("promtool", path="/usr/bin:/usr/local/bin"), reason="no Prometheus here"
)


def test_the_files_agree_with_the_code() -> None:
    made = grafana.texts(SCRAPE_SECONDS)
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert there.keys() == made.keys()
    assert there == made, "run: ./dev run python monitoring/generators/dashboards.py"


def stat(title: str, expr: str, **more: Any) -> Panel:
    return Panel(title=title, kind="stat", queries=((expr,),), text="t", **more)


def dashboard(*panels: Panel) -> Dashboard:
    return Dashboard(uid="x", title="x", text="x", rows=(PanelRow(title="r", panels=panels),))


def static_problems(boards: Sequence[Dashboard]) -> list[str]:
    """What is wrong with queries that no Prometheus is needed to see."""
    problems = []
    for board in boards:
        queries = [(p.title, q.expr, q.legend) for p in board.panels for q in p.queries]
        queries += [(f"${v.name}", v.metric, "") for v in board.variables]
        for title, expr, legend in queries:
            place = f"{board.uid}: {title}"
            if promql.is_padded(expr):
                problems.append(f"{place}: padded")
            named = promql.names(expr)
            for metric, labels in named.metrics.items():
                if metric in _EXPORTED:
                    if odd := labels - _EXPORTED[metric]:
                        problems.append(f"{place}: {metric} has no label {', '.join(sorted(odd))}")
                elif metric != "ALERTS" and not metric.startswith(_OTHERS):
                    problems.append(f"{place}: no exporter and no rule has {metric}")
            if all(metric in _EXPORTED for metric in named.metrics):
                exported = frozenset[str]().union(*(_EXPORTED[name] for name in named.metrics))
                odd = (named.grouping | promql.legend_labels(legend)) - exported
                if odd:
                    problems.append(f"{place}: nothing has the label {', '.join(sorted(odd))}")
    return problems


def test_every_query_names_what_somebody_exports() -> None:
    assert static_problems([*BOARDS, *PROFILE_BOARDS.values()]) == []


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        ("carme_nothing", "no exporter"),
        ('carme_gpu_lost{color="red"}', "no label color"),
        ("sum by (flavour) (carme_gpu_lost)", "nothing has the label flavour"),
        ("carme_gpu_lost or vector(0)", "padded"),
        ("user:carme_nothing:avg5m", "no exporter"),
    ],
)
def test_a_wrong_query_is_found(expr: str, problem: str) -> None:
    assert any(problem in line for line in static_problems([dashboard(stat("p", expr))]))


def test_names() -> None:
    names = promql.names(
        'topk(5, sum by (user) (rate(a_total{x=~"y|by (z)",w!="1"}[5m] offset 1h)))'
        " * on (jobid) group_left (b) up == bool 1e3 / 2"
    )
    assert names.metrics == {"a_total": {"x", "w"}, "up": frozenset()}
    assert names.grouping == {"user", "jobid", "b"}
    assert promql.names('{__name__="x"}').metrics == {}
    assert promql.legend_labels("{{node}} GPU {{ gpu }}") == {"node", "gpu"}
    assert not promql.is_padded('up{x="vector(0)"}')
    assert promql.is_padded("up or absent(up)")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_is_whole(board: Dashboard) -> None:
    made = grafana.dashboard(board, SCRAPE_SECONDS)
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(len(panel.text) > 25 for panel in board.panels), "a text that helps"
    titles = [panel.title for panel in board.panels]
    assert len(set(titles)) == len(titles)
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"])
               for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not own & cells, f"{panel['title']} lies on another"
        assert place["x"] + place["w"] <= 24
        cells |= own
    boards = {other.uid: other for other in BOARDS}
    for panel in board.panels:
        if panel.link:
            target = boards[panel.link.uid]
            assert panel.link.label in {variable.name for variable in target.variables}


def test_low_and_high_can_be_bad() -> None:
    high = grafana._steps(stat("x", "up", warn=1, alarm=2))
    assert [step["color"] for step in high] == ["green", "yellow", "red"]
    low = grafana._steps(stat("x", "up", warn=0.5, alarm=0.2))
    assert [(step["color"], step["value"]) for step in low] == [
        ("red", None),
        ("yellow", 0.2),
        ("green", 0.5),
    ]


def recorded(world: Any) -> tuple[list[str], float]:
    """What the exporter says of the captured node over two minutes, as OpenMetrics text."""
    exporter = world.exporter(emissions_grams_per_kwh=400, price_per_kwh=0.25)
    world.gpus.xids = {("GPU-aaaa", 79): 1}
    base = time.time() - 600
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]]
    series = defaultdict(list)
    for step in range(9):
        world.wait(15)
        for gpu in world.gpus.gpus:
            world.gpus.burn(gpu.uuid, 1000)
        for name, key, value in series_of(exporter.collect()):
            metric = BY_NAME[name]
            labels = dict(zip(metric.labels, key, strict=True))
            whole = {"job": "carme", "instance": "n1", "node": "n1", "cluster": "c", **labels}
            series[name, tuple(whole.items())].append((base + 15 * step, float(value)))
    text = [line(name, dict(labels), points) for (name, labels), points in series.items()]
    return text, base + 120


@needs_prometheus
def test_panels_for_absent_hardware_on_recorded_series(world: Any, tmp_path: Path) -> None:
    text, at = recorded(world)
    blocks(text, tmp_path / "data")
    with serving(tmp_path / "data") as prometheus:
        checker = Checker(prometheus, at, RECORDED)
        results = [
            result
            for board in BOARDS
            if (panels := tuple(panel for panel in board.panels if panel.needs in RECORDED))
            for result in checker.check(
                [board.model_copy(update={"rows": (PanelRow(title="r", panels=panels),)})]
            )
            if not result.panel.startswith("$")
        ]
        assert len(results) >= 7
        assert [result for result in results if result.status != "ok"] == []
        # The same checker finds what is wrong.
        odd = dashboard(
            stat("gone", "carme_gone"),
            stat("label", 'carme_node_cpus{colour!="red"}'),
            stat("none", "carme_node_cpus < 0"),
            stat("broken", "sum("),
            stat("padded", "carme_gone or vector(0)"),
            stat("absent", "carme_gone", needs="waiting"),
            stat("fine", "carme_node_cpus"),
        )
        statuses = {result.panel: result.status for result in checker.check([odd])}
    assert statuses == {
        "gone": "unknown",
        "label": "unknown",
        "none": "empty",
        "broken": "error",
        "padded": "padded",
        "absent": "not here",
        "fine": "ok",
    }


def test_provisioning(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        dashboards, ["write", str(tmp_path), "--password-file", "/etc/grafana/password"]
    )
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "dashboards").glob("*.json"))) == len(BOARDS)
    source = yaml.safe_load((tmp_path / "provisioning/datasources/carme.yml").read_text())
    [entry] = source["datasources"]
    assert entry["secureJsonData"]["basicAuthPassword"] == "$__file{/etc/grafana/password}"
    provider = yaml.safe_load((tmp_path / "provisioning/dashboards/carme.yml").read_text())
    assert provider["providers"][0]["options"]["path"] == "/var/lib/grafana/dashboards/carme"
    open_one = render(
        "grafana-datasources.yml",
        prometheus_url="http://x:9090",
        prometheus_user="carme",
        prometheus_password_file=None,
        scrape_seconds=15,
    )
    assert "basicAuth" not in open_one
    assert json.loads((tmp_path / "dashboards/carme-job.json").read_text())["uid"] == "carme-job"


def test_choosing() -> None:
    config = Config()
    assert chosen((), config) == list(BOARDS)
    on = config.model_copy(update={"exporter": replace_profiles(config)})
    assert chosen((), on)[-1].uid == "dcgm"
    assert [board.uid for board in chosen(("waste", "dcgm"), config)] == ["carme-waste", "dcgm"]
    with pytest.raises(InputError, match="no dashboard nope"):
        chosen(("nope",), config)


def replace_profiles(config: Any) -> Any:
    return config.exporter.model_copy(update={"profiles": ("dcgm",)})


_GRAFANA_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800,
                  21600, 43200, 86400, 604800)  # fmt: skip


def _grafana_step(span: float, points: int, least: int) -> int:
    """The step that Grafana takes: the span by the points, rounded, but not below the least."""
    bounds = pairwise(_GRAFANA_STEPS)
    rounded = next((low for low, high in bounds if span / points < (low + high) / 2), 604800)
    return max(least, rounded)


@pytest.mark.parametrize("scrape_seconds", [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60])
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_steps_are_multiples_of_the_scrape_interval(board: Dashboard, scrape_seconds: int) -> None:
    """Whatever the time range: otherwise a constant value is drawn as a saw-tooth."""
    spans = [minutes * 60 for minutes in (*range(5, 600), *range(600, 60 * 24 * 90, 601))]
    panels = grafana.dashboard(board, scrape_seconds)["panels"]
    panels = [panel for panel in panels if panel["type"] != "row"]
    assert panels
    for panel in panels:
        least = int(panel["interval"].removesuffix("s"))
        steps = {_grafana_step(span, panel["maxDataPoints"], least) for span in spans}
        assert not [step for step in steps if step % scrape_seconds], panel["title"]
    for span in spans:
        assert step_seconds(span, scrape_seconds) % scrape_seconds == 0
        assert span / step_seconds(span, scrape_seconds) <= POINTS


@pytest.mark.parametrize("scrape_seconds", [7, 40, 45])
def test_an_interval_that_divides_no_minute_still_fits_short_spans(scrape_seconds: int) -> None:
    """Grafana's own steps beyond that are no multiples."""
    [panel] = grafana.dashboard(dashboard(stat("x", "up")), scrape_seconds)["panels"][1:]
    least = int(panel["interval"].removesuffix("s"))
    assert least >= 30
    assert least % scrape_seconds == 0
    assert _grafana_step(least * POINTS / 2, POINTS, least) == least


def test_what_is_written_fits_the_configured_scrape_interval(tmp_path: Path) -> None:
    toml = tmp_path / "carme.toml"
    toml.write_text("[prometheus]\nscrape_seconds = 20\n")
    done = CliRunner().invoke(dashboards, ["write", str(tmp_path), "--config", str(toml)])
    assert done.exit_code == 0, done.output
    source = yaml.safe_load((tmp_path / "provisioning/datasources/carme.yml").read_text())
    assert source["datasources"][0]["jsonData"]["timeInterval"] == "20s"
    for path in (tmp_path / "dashboards").glob("*.json"):
        panels = json.loads(path.read_text())["panels"]
        assert {panel["interval"] for panel in panels if panel["type"] != "row"} == {"40s"}


@pytest.mark.parametrize("scrape_seconds", range(1, 61))
def test_ansible_makes_the_same_steps(scrape_seconds: int) -> None:
    variables = yaml.safe_load((ROOT / "ansible/roles/grafana/vars/main.yml").read_text())
    values = {"carme_toml": {"prometheus": {"scrape_seconds": scrape_seconds}}}
    for name in ("grafana_scrape_seconds", "grafana_min_step_seconds"):
        values[name] = jinja2.Template(variables[name]).render(values)
    assert int(values["grafana_min_step_seconds"]) == min_step_seconds(scrape_seconds)
    source = variables["grafana_provisioning"]["datasources"]
    assert source["scrape_seconds"] == "{{ grafana_scrape_seconds }}"
