"""Rules and alerts: their results, and that every metric they use is exported."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from carme.config import AlertSettings
from carme.templates import PROMETHEUS_RULES, prometheus_rules, render
from carme_monitoring.pipeline import BY_NAME
from support.generators import recording_rules

ROOT = Path(__file__).parents[3]
RULES = ROOT / "monitoring/prometheus/rules"
TESTS = Path(__file__).with_name("rules")
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
CASES = yaml.safe_load((TESTS / "alerts.test.yml").read_text())["tests"]
RECORDED = {rule.record: rule for _, rules in recording_rules.groups().values() for rule in rules}

TARGET_LABELS = {"cluster", "instance", "job", "node"}
OTHERS = {
    "up": set(),
    "carme_exporter_time_seconds": set(),
    "prometheus_rule_evaluation_failures_total": {"rule_group"},
    "prometheus_sd_file_mtime_seconds": {"filename"},
}
"""What Prometheus and the exporter's own process export; the live test asks them."""
WORDS = {
    *("sum", "max", "min", "avg", "topk", "by", "on", "group_left", "and", "or", "unless"),
    *("offset", "time", "abs", "clamp", "clamp_min", "increase", "timestamp", "predict_linear"),
    *("last_over_time", "max_over_time", "min_over_time", "avg_over_time", "sum_over_time"),
}
EXPRESSIONS = {
    **{alert["alert"]: alert["expr"] for alert in ALERTS},
    **{rule.record: rule.expr for rule in RECORDED.values()},
}
promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (prometheus)")
names = [alert["alert"] for alert in ALERTS]


@promtool
@pytest.mark.parametrize("file", sorted(TESTS.glob("*.test.yml")), ids=lambda file: file.stem)
def test_promtool(file: Path) -> None:
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_the_files_are_good_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", *RULES.glob("*.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recording_rules_are_those_of_the_table() -> None:
    generator = "monitoring/generators/recording_rules.py"
    made = recording_rules.text()
    assert (RULES / "recording.yml").read_text() == made, (
        f"run: ./dev run python {generator} > monitoring/prometheus/rules/recording.yml"
    )
    assert {path.name for path in RULES.glob("*.yml")} == set(PROMETHEUS_RULES)


@pytest.mark.parametrize("alert", ALERTS, ids=names)
def test_an_alert_fires_is_quiet_and_is_explained(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    mine = [case for case in CASES if case["name"].split()[0].rstrip(":") == name]
    expected = [test["exp_samples"] for case in mine for test in case["promql_expr_test"]]
    for case in mine:
        assert f'alertname="{name}"' in case["promql_expr_test"][0]["expr"]
    assert any(expected), "no case where it fires"
    assert not all(expected), "no case where it is quiet"
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    page = (ROOT / notes["runbook_url"]).read_text()
    assert page.startswith(f"# {name}\n")
    for heading in ("## What it means", "## How to check", "## What to do"):
        assert heading in page
    fired = next(samples[0]["labels"] for samples in expected if samples)
    shown = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    assert shown <= set(re.findall(r'(\w+)="', fired)), "a label that the alert does not have"


def test_every_runbook_and_every_case_has_its_alert() -> None:
    assert {page.stem for page in (ROOT / "docs/runbooks").glob("*.md")} == set(names)
    assert {case["name"].split()[0].rstrip(":") for case in CASES} == set(names)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_rule_asks_for_what_is_exported(name: str) -> None:
    text = re.sub(r'"[^"]*"', '""', EXPRESSIONS[name])
    for metric, selector in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", text):
        used = set(re.findall(r"(\w+)\s*[=!]", selector))
        assert used <= _labels(metric) | TARGET_LABELS, f"{metric} has no such label"
    text = re.sub(r"\{[^}]*\}|\[[\w:]+\]", " ", text)
    text = re.sub(r"\b(by|on|group_left)\s*\([^)]*\)", " ", text)
    for word in re.findall(r"(?<![\w:])[a-zA-Z_:][\w:]*", text):
        assert word in WORDS or _labels(word) is not None, f"nobody exports {word}"


def _labels(metric: str) -> Any:
    if metric in BY_NAME:
        return set(BY_NAME[metric].labels)
    if metric in RECORDED:
        return set(RECORDED[metric].labels)
    assert metric in OTHERS, f"nobody exports {metric}"
    return OTHERS[metric]


def test_runbooks_can_be_the_sites_own() -> None:
    assert prometheus_rules("alerts.yml") == (RULES / "alerts.yml").read_text()
    text = prometheus_rules("alerts.yml", "https://docs.example/runbooks/")
    assert "runbook_url: https://docs.example/runbooks/GpuLost.html" in text
    assert "docs/runbooks/GpuLost.md" not in text


@pytest.mark.skipif(not shutil.which("amtool"), reason="needs amtool (prometheus-alertmanager)")
@pytest.mark.parametrize(
    "alerts",
    [
        AlertSettings(),
        AlertSettings(
            email_to="ops@example.org",
            email_from="carme@example.org",
            smtp_host="mail.example.org:25",
            webhook_url="http://127.0.0.1:9/hook",
        ),
    ],
)
def test_alertmanager_takes_its_configuration(tmp_path: Path, alerts: AlertSettings) -> None:
    file = tmp_path / "alertmanager.yml"
    file.write_text(render("alertmanager.yml", alerts=alerts))
    done = subprocess.run(["amtool", "check-config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_text().count("ops@example.org") == bool(alerts.email_to)
    inhibited = re.findall(r'alertname=~?"([^"]+)"', file.read_text())
    assert {name for group in inhibited for name in group.split("|")} <= set(names)
    routed = ["amtool", "config", "routes", "test", f"--config.file={file}"]
    for severity, receiver in (
        ("critical", "operators"),
        ("warning", "operators"),
        ("info", "none"),
    ):
        found = subprocess.run([*routed, f"severity={severity}"], capture_output=True, text=True)
        assert found.stdout.strip() == receiver
