"""The renderer: equal to prometheus-client, for any label and value."""

import math
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from carme_monitoring.metrics import Metric, Samples
from carme_monitoring.pipeline import TABLE
from carme_monitoring.render import Renderer

METRICS = (
    Metric("carme_a_bytes", "gauge", ("jobid", "node"), 'Help with \\ and "quotes".'),
    Metric("carme_b_joules_total", "counter", ("jobid",), "A counter, to the thousandth."),
    Metric("carme_c_info", "info", ("name",), "An info."),
    Metric("carme_d", "gauge", (), "No labels."),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.one_of(st.floats(), st.integers(-(2**63), 2**63))


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in parse_text(text)
        for sample in family.samples
    }


def by_client(samples: Samples) -> str:
    class Collector:
        def collect(self):
            for metric in METRICS:
                family = samples.families.get(metric.name, {})
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                made = kind(metric.name, metric.help, labels=metric.labels)
                for labels, value in family.items():
                    made.add_metric(labels, value)
                yield made

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(
        value == right[key] or (math.isnan(value) and math.isnan(right[key]))
        for key, value in left.items()
    )


@given(
    a=st.dictionaries(st.tuples(texts, texts), values, max_size=5),
    b=st.dictionaries(
        st.tuples(texts), st.integers(0, 10**15).map(lambda value: value / 1000), max_size=5
    ),
    d=values,
)
def test_it_says_what_prometheus_client_says(a: dict, b: dict, d: float) -> None:
    samples = Samples()
    samples.families = {"carme_a_bytes": a, "carme_b_joules_total": b, "carme_d": {(): d}}
    renderer = Renderer(METRICS)
    text = renderer.render(samples).decode()
    assert same(parsed(text), parsed(by_client(samples)))
    assert renderer.render(samples).decode() == text


def test_changes_of_series_and_values_are_seen() -> None:
    samples, renderer = Samples(), Renderer(METRICS)
    samples.add("carme_b_joules_total", ("1",), 5)
    samples.add("carme_b_joules_total", ("2",), 6.5)
    assert b'jobid="2"} 6.500\n' in renderer.render(samples)
    samples.families["carme_b_joules_total"] = {("2",): 7.25, ("3%",): 1}
    text = renderer.render(samples).decode()
    assert 'jobid="1"' not in text
    assert 'jobid="2"} 7.250\ncarme_b_joules_total{jobid="3%"} 1.000\n' in text
    samples.families["carme_b_joules_total"][("2",)] = math.inf
    assert 'jobid="2"} +Inf\n' in renderer.render(samples).decode()


def test_openmetrics() -> None:
    samples = Samples()
    samples.add("carme_a_bytes", ("1", 'a"b\\c\nd'), 2)
    samples.add("carme_b_joules_total", ("1",), 3.5)
    samples.add("carme_c_info", ("x",), 1)
    text = Renderer(METRICS).render(samples, openmetrics=True).decode()
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in parse_open(text)}
    assert families["carme_b_joules"].type == "counter"
    assert families["carme_b_joules"].unit == "joules"
    assert families["carme_c"].type == "info"
    assert families["carme_a_bytes"].samples[0].labels["node"] == 'a"b\\c\nd'


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_every_metric() -> None:
    samples = Samples()
    for metric in TABLE:
        samples.add(metric.name, tuple("x" for _ in metric.labels), 1)
    text = Renderer(TABLE).render(samples)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_table_keeps_its_own_rules() -> None:
    names = [metric.name for metric in TABLE]
    assert len(set(names)) == len(names)
    for metric in TABLE:
        assert metric.name.startswith("carme_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert (metric.kind == "info") == metric.name.endswith("_info")
        assert "job" not in metric.labels  # Prometheus' own label
        assert metric.help.endswith(".")
        if metric.name.startswith("carme_job_"):
            assert metric.labels[:2] == ("jobid", "node")
        whose = metric.name.startswith(("carme_slurm_", "carme_owner_"))
        if not whose and metric.name != "carme_job_info":
            assert not {"user", "account"} & set(metric.labels)
