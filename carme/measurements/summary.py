"""Figures over many judged rows: by source, by GPU and by model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from carme.measurements.judgement import Judgement
from carme.measurements.names import find_gpu, plain, table


class ErrorSummary(NamedTuple):
    """Errors of the step time and of the memory over a group of rows."""

    source: str
    gpu: str
    model: str
    rows: int
    eligible: int
    modelled: int
    mean_error: float | None
    """Over the eligible rows: 1 for each that is not modelled or is refused."""
    median_error: float | None
    ninth_decile: float | None
    bias: float | None
    """Geometric mean of predicted over measured, of the rows with a prediction."""
    falsely_refused: int
    memory_rows: int
    median_memory_error: float | None
    nearly_full: int
    """Rows measured above 85 % of the GPU's memory."""
    doubled_refused: int
    """Of these, rows of which twice the micro-batch is refused."""
    in_sample: str
    """The constants that were fitted on these rows."""
    not_eligible: dict[str, int]
    not_modelled: dict[str, int]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()


def summarize(
    judgements: Iterable[Judgement], *, source: str = "", gpu: str = "", model: str = ""
) -> ErrorSummary:
    """The figures of one group."""
    rows = list(judgements)
    eligible = [j for j in rows if j.is_eligible]
    predicted = [j for j in eligible if j.is_modelled and not j.refused]
    errors = np.array([j.error for j in eligible])
    ratios = np.array([j.ratio for j in eligible if j.is_modelled])
    memory = [
        abs(j.predicted_bytes / j.measured_bytes - 1)
        for j in eligible
        if j.measured_bytes and j.predicted_bytes
    ]
    full = [j.doubled_is_refused for j in predicted if j.doubled_is_refused is not None]
    return ErrorSummary(
        source=source,
        gpu=gpu,
        model=model,
        rows=len(rows),
        eligible=len(eligible),
        modelled=sum(j.is_modelled for j in eligible),
        mean_error=float(errors.mean()) if len(errors) else None,
        median_error=float(np.median(errors)) if len(errors) else None,
        ninth_decile=float(np.quantile(errors, 0.9)) if len(errors) else None,
        bias=float(np.exp(np.log(ratios).mean())) if len(ratios) else None,
        falsely_refused=sum(bool(j.refused) for j in eligible),
        memory_rows=len(memory),
        median_memory_error=float(np.median(memory)) if memory else None,
        nearly_full=len(full),
        doubled_refused=sum(full),
        in_sample=table().in_sample.get(source, ""),
        not_eligible=_reasons(j.not_eligible for j in rows),
        not_modelled=_reasons(j.not_modelled for j in eligible),
    )


def _reasons(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(text for text in texts if text).most_common())


class SummaryTables(NamedTuple):
    """The same rows, grouped in four ways."""

    sources: list[ErrorSummary]
    source_gpus: list[ErrorSummary]
    source_models: list[ErrorSummary]
    gpus: list[ErrorSummary]


def summary_tables(judgements: list[Judgement]) -> SummaryTables:
    """All groups. MLPerf's rows have a source of their own, so they are apart."""

    def group(key: Callable[[Judgement], tuple[str, str, str]]) -> list[ErrorSummary]:
        groups: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
        for judgement in judgements:
            groups[key(judgement)].append(judgement)
        return [
            summarize(members, source=source, gpu=gpu, model=model)
            for (source, gpu, model), members in sorted(groups.items())
        ]

    return SummaryTables(
        sources=group(lambda j: (j.row.source, "", "")),
        source_gpus=group(lambda j: (j.row.source, gpu_name(j), "")),
        source_models=group(lambda j: (j.row.source, "", plain(j.row.text("model")))),
        gpus=[s for s in group(lambda j: ("", gpu_name(j), "")) if s.eligible],
    )


def gpu_name(judgement: Judgement) -> str:
    """The library's name of the row's GPU, or the printed one."""
    row = judgement.row
    memory = row.number("gpu_memory_gb")
    return find_gpu(row.text("gpu"), row.text("form"), memory) or row.text("gpu")
