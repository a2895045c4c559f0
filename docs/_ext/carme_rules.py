"""`{carme-recording}`: the installed recording rules; `{carme-alerts}`: the installed alerts."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml
from docutils import nodes
from recording_rules import RecordingRule, groups
from sphinx.util.docutils import SphinxDirective

_TITLES = {
    "job": "Jobs",
    "owner": "Owners: a user in an account and a partition",
    "user": "Users",
    "account": "Accounts",
    "partition": "Partitions",
    "node": "Nodes",
    "cluster": "The cluster",
}


class Recording(SphinxDirective):
    """A table for each level."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_levels()), allow_section_headings=True)


class Alerts(SphinxDirective):
    """A table of all alerts, each with a link to its runbook."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_alerts()))


def _levels() -> Iterator[str]:
    rules = [rule for _, group_rules in groups().values() for rule in group_rules]
    for level, title in _TITLES.items():
        yield f"## {title}"
        yield ""
        yield from _table(
            [rule for rule in rules if rule.record.partition(":")[0].split("_")[0] == level]
        )
        yield ""


def _table(rules: list[RecordingRule]) -> Iterator[str]:
    """A row per rule; rules that differ only in their window share a row."""
    yield "| name | labels | meaning |"
    yield "|---|---|---|"
    names = {rule.record for rule in rules}
    for rule in rules:
        name, meaning = rule.record, rule.meaning
        short = name.removesuffix("1h") + "5m"
        if name.endswith("1h") and short in names:
            continue
        if name.endswith("5m") and name.removesuffix("5m") + "1h" in names:
            name = f"{name}`, `…1h"
            meaning = meaning.removesuffix(" In the last five minutes.")
        labels = ", ".join(f"`{label}`" for label in rule.labels)
        yield f"| `{name}` | {labels} | {meaning} |"


def _alerts() -> Iterator[str]:
    rules = (files("carme_monitoring") / "prometheus/rules/alerts.yml").read_text(encoding="utf-8")
    yield "| alert | severity | for | message |"
    yield "|---|---|---|---|"
    for group in yaml.safe_load(rules)["groups"]:
        for rule in group["rules"]:
            text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", rule["annotations"]["description"])
            text = re.sub(r"\{\{ \$value[^}]*\}\}", "*N*", text)
            name, duration = rule["alert"], rule.get("for", "at once")
            link = f"[{name}](../runbooks/{name}.md)"
            yield f"| {link} | {rule['labels']['severity']} | {duration} | {text} |"


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("carme-recording", Recording)
    app.add_directive("carme-alerts", Alerts)
    return {"parallel_read_safe": True}
