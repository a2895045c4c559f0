"""Samples to text, fast: everything but the values is kept from one answer to the next.

For every family one format (of bytes, which is faster than of text) holds all its lines with `%r`
or `%.3f` in place of the values, so an answer with the same series as the last costs one C-level
formatting call per family. A family whose series changed is put together again from its lines,
which are kept too.
"""

from collections.abc import Iterable
from math import isfinite

from prometheus_client.utils import floatToGoString

from carme_monitoring.metrics import Family, LabelValues, Metric, Samples

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Cached:
    __slots__ = ("keys", "lines", "template")

    def __init__(self) -> None:
        self.keys: tuple[LabelValues, ...] = ()
        self.lines: dict[LabelValues, bytes] = {}
        self.template = b""


class Renderer:
    """Renders answer after answer; not for use by several threads at once."""

    def __init__(self, table: Iterable[Metric]) -> None:
        self._table = {metric.name: metric for metric in table}
        self._cache: dict[str, _Cached] = {}
        self._heads = {
            openmetrics: {name: head(m, openmetrics).encode() for name, m in self._table.items()}
            for openmetrics in (False, True)
        }

    def render(self, samples: Samples, openmetrics: bool = False) -> bytes:
        """The whole answer, families in the table's order."""
        heads = self._heads[openmetrics]
        parts: list[bytes] = []
        for name in self._table:
            if family := samples.families.get(name):
                parts.append(heads[name])
                parts.append(self._lines(name, family))
        if openmetrics:
            parts.append(b"# EOF\n")
        return b"".join(parts)

    def _lines(self, name: str, family: Family) -> bytes:
        cached = self._cache.get(name)
        if cached is None:
            cached = self._cache[name] = _Cached()
        keys = tuple(family)
        if keys != cached.keys:
            metric, previous = self._table[name], cached.lines
            lines = {key: previous.get(key) or _line(metric, key) for key in keys}
            cached.keys, cached.lines, cached.template = keys, lines, b"".join(lines.values())
        values = tuple(family.values())
        if not isfinite(sum(values)):  # repr would write inf and nan as neither format allows
            plain = cached.template.replace(self._table[name].form.encode(), b"%b")
            return plain % tuple(
                floatToGoString(value).encode()  # type: ignore[no-untyped-call]
                for value in values
            )
        return cached.template % values


def escape(text: str) -> str:
    """A label value: backslash, quote and newline are the three that end it early."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def head(metric: Metric, openmetrics: bool) -> str:
    """HELP and TYPE of a family.

    The text format has no info type. OpenMetrics has UNIT too, and a family's name there has no
    `_total` or `_info`.
    """
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if not openmetrics:
        kind = "gauge" if metric.kind == "info" else metric.kind
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {kind}\n"
    suffix = {"counter": "_total", "info": "_info"}.get(metric.kind, "")
    name = metric.name.removesuffix(suffix)
    unit = f"# UNIT {name} {metric.unit}\n" if metric.unit else ""
    quoted = text.replace('"', r"\"")
    return f"# HELP {name} {quoted}\n# TYPE {name} {metric.kind}\n{unit}"


def _line(metric: Metric, values: LabelValues) -> bytes:
    pairs = ",".join(
        f'{label}="{escape(value)}"' for label, value in zip(metric.labels, values, strict=True)
    )
    start = f"{metric.name}{{{pairs}}}" if pairs else metric.name
    return f"{start.replace('%', '%%')} {metric.form}\n".encode()
