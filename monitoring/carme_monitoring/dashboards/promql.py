"""The metrics that a query names, and the labels it expects of them. No I/O.

Not a parser of PromQL, which Prometheus itself has: just enough to find names.
"""

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_LABELS = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", re.IGNORECASE
)
_SELECTOR = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)?\s*\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(?:=~|!~|!=|=)")
_DURATION = re.compile(r"\[[^\[\]]*\]|\boffset\s+-?\w+")
_PADDING = re.compile(r"\bvector\s*\(|\babsent(?:_over_time)?\s*\(", re.IGNORECASE)
_WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "bool",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
        "offset",
        "inf",
        "nan",
    ]
)


@dataclass(frozen=True)
class Names:
    """Metrics with the labels that their matchers name, and labels of groupings and joins."""

    metrics: dict[str, frozenset[str]]
    grouping: frozenset[str]


def names(expression: str) -> Names:
    """Everything that the query names."""
    text = _STRING.sub('""', expression)
    grouping = {
        word.strip() for match in _LABELS.findall(text) for word in match.split(",") if word.strip()
    }
    text = _DURATION.sub(" ", _LABELS.sub(" ", text))
    metrics: dict[str, set[str]] = {}
    for name, matchers in _SELECTOR.findall(text):
        if name:
            metrics.setdefault(name, set()).update(_MATCHER.findall(matchers))
    text = re.sub(r"\{[^{}]*\}", " ", text)
    for match in _NAME.finditer(text):
        word, rest = match[0], text[match.end() :].lstrip()
        # Skip the letters in numbers such as 1e3 or 0x1, and the names of functions.
        if text[match.start() - 1 : match.start()].isdigit() or rest.startswith("("):
            continue
        if word.lower() not in _WORDS:
            metrics.setdefault(word, set())
    return Names({name: frozenset(labels) for name, labels in metrics.items()}, frozenset(grouping))


def is_padded(expression: str) -> bool:
    """Whether the query returns a value even without series, so that its panel is never empty."""
    return bool(_PADDING.search(_STRING.sub('""', expression)))


def legend_labels(legend: str) -> frozenset[str]:
    """The labels in `{{node}} GPU {{gpu}}`."""
    return frozenset(re.findall(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", legend))
