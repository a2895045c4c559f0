"""Prints monitoring/prometheus/rules/recording.yml, from the rules in carme_monitoring."""

import yaml

from carme_monitoring.recording import groups


class _Text(str):
    """Written as a block when it has several lines."""


def _represent(dumper: yaml.SafeDumper, text: _Text) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


yaml.SafeDumper.add_representer(_Text, _represent)


def text() -> str:
    """The file."""
    content = {
        "groups": [
            {
                "name": name,
                **({"interval": f"{every}s"} if every else {}),
                "rules": [{"record": rule.record, "expr": _Text(rule.expr)} for rule in rules],
            }
            for name, (every, rules) in groups().items()
        ]
    }
    head = (
        "# Made from carme_monitoring/recording.py; do not edit:\n"
        "#   ./dev run python monitoring/generators/recording_rules.py"
        " > monitoring/prometheus/rules/recording.yml\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, width=1000)


if __name__ == "__main__":
    print(text(), end="")
