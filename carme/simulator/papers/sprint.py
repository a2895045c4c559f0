"""Oyama et al. 2016: mini-batch size, staleness and epoch time of asynchronous SGD (SPRINT)."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np

from carme.simulator.papers import Origin, PublishedFigure, around
from carme.simulator.runs.asynchronous import AsyncStatistics, closed_form, simulate_staleness
from carme.simulator.runs.jitter import Jitter
from carme.simulator.workload import Floats

SAMPLES = 1_281_167
GPUS_PER_NODE = 8
"""Not in the text; with it the table's rows are consistent."""
TARGET_MINI_BATCH = (138 * 0.75, 138 * 1.25)
LARGEST_SUB_BATCH = 11
"""The largest that the table uses in fp32; fp16 doubles it."""


class Setup(NamedTuple):
    """A row of the table of optima: inputs T_GPU and T_Update, outputs as published."""

    name: str
    half_precision: bool
    all_reduce: float
    """Its time relative to the baseline's network."""
    nodes: int
    sub_batch: int
    mini_batch: float
    epoch_seconds: float
    gradient_seconds: float
    update_seconds: float


TABLE = (
    Setup(
        "baseline",
        half_precision=False,
        all_reduce=1.0,
        nodes=8,
        sub_batch=8,
        mini_batch=165.1,
        epoch_seconds=1779,
        gradient_seconds=0.711,
        update_seconds=0.229,
    ),
    Setup(
        "FP16",
        half_precision=True,
        all_reduce=1.0,
        nodes=7,
        sub_batch=22,
        mini_batch=170.1,
        epoch_seconds=1462,
        gradient_seconds=1.406,
        update_seconds=0.194,
    ),
    Setup(
        "EDR",
        half_precision=False,
        all_reduce=7 / 12.5,
        nodes=12,
        sub_batch=11,
        mini_batch=166.6,
        epoch_seconds=1245,
        gradient_seconds=1.026,
        update_seconds=0.162,
    ),
    Setup(
        "FP16 + EDR",
        half_precision=True,
        all_reduce=7 / 12.5,
        nodes=8,
        sub_batch=15,
        mini_batch=171.5,
        epoch_seconds=1128,
        gradient_seconds=0.845,
        update_seconds=0.151,
    ),
)


def exact_inputs(row: Setup) -> tuple[float, float]:
    """T_GPU and T_Update that the closed form turns into the row; the table rounds them."""
    workers = row.nodes * GPUS_PER_NODE
    gradient = row.epoch_seconds * workers * row.sub_batch / SAMPLES
    return gradient, row.mini_batch * gradient / (workers * row.sub_batch)


def rows() -> list[PublishedFigure]:
    """Closed form, event simulation and what-if against the table."""
    figures: list[PublishedFigure] = []
    for row in TABLE:
        gpus = row.nodes * GPUS_PER_NODE
        gradient, update = exact_inputs(row)
        formula = closed_form(
            gradient_seconds=gradient,
            update_seconds=update,
            gpus=gpus,
            sub_batch=row.sub_batch,
            samples=SAMPLES,
        )
        events = simulate_staleness(
            gradient_seconds=gradient,
            update_seconds=update,
            gpus=gpus,
            sub_batch=row.sub_batch,
            samples=SAMPLES,
            jitter=Jitter(cv=0.05),  # independent, as the closed form assumes
            update_jitter=0.05,
        )
        figures += _epoch_and_mini_batch(
            row, "closed form", formula, (0.001, 0.001), "T_GPU, T_Update from it", "identity"
        )
        figures += _epoch_and_mini_batch(
            row, "events", events, (0.02, 0.02), "T_GPU, T_Update from it", "identity"
        )
        staleness = gradient / update + 1
        figures.append(
            PublishedFigure(
                f"{row.name}: staleness, events",
                reference=f"{staleness:.2f}",
                simulated=events.staleness.mean,
                low=staleness * 0.98,
                high=staleness * 1.02,
                note="r + 1, the closed form's mean",
                origin="worked out",
            )
        )
    return figures + what_if()


def what_if() -> list[PublishedFigure]:
    """Four coefficients fitted on all rows: the rows again, and the optimum's node count."""
    compute, update = fit()
    figures: list[PublishedFigure] = []
    note = "coefficients fitted on these rows"
    for row in TABLE:
        gradient_seconds, update_seconds = times(row, row.nodes, row.sub_batch, compute, update)
        statistics = closed_form(
            gradient_seconds=gradient_seconds,
            update_seconds=update_seconds,
            gpus=row.nodes * GPUS_PER_NODE,
            sub_batch=row.sub_batch,
            samples=SAMPLES,
        )
        figures += _epoch_and_mini_batch(row, "what-if", statistics, (0.07, 0.12), note, "fitted")
        name = f"{row.name}: fastest node count, what-if"
        nodes, _ = optimum(row, compute, update)
        figures.append(
            around(name, reference=row.nodes, simulated=nodes, band=1, note=note, origin="fitted")
        )
    return figures


def _epoch_and_mini_batch(
    row: Setup,
    method: str,
    statistics: AsyncStatistics,
    bands: tuple[float, float],
    note: str,
    origin: Origin = "printed",
) -> list[PublishedFigure]:
    """Epoch time and mini-batch of a row; the bands are relative."""
    figures = (
        ("epoch", row.epoch_seconds, statistics.epoch_seconds, "s", bands[0]),
        ("mini-batch", row.mini_batch, statistics.mini_batch.mean, "", bands[1]),
    )
    return [
        PublishedFigure(
            f"{row.name}: {name}, {method}",
            reference=f"{published:g}",
            simulated=simulated,
            unit=unit,
            low=published * (1 - band),
            high=published * (1 + band),
            note=note,
            origin=origin,
        )
        for name, published, simulated, unit, band in figures
    ]


def fit() -> tuple[Floats, Floats]:
    """Coefficients of T_GPU = a·(computation) + b·(images) and
    T_Update = c·(all-reduce)·log₂(nodes) + d: the first for the smallest worst error of the epoch
    times, the second, given the first, for that of the mini-batches."""
    gradient = np.array([_gradient_terms(row, row.sub_batch) for row in TABLE])
    compute = _minimax(gradient, np.array([exact_inputs(row)[0] for row in TABLE]))
    update = np.array([_update_terms(row, row.nodes) for row in TABLE])
    samples = np.array([row.nodes * GPUS_PER_NODE * row.sub_batch for row in TABLE])
    mini_batch = np.array([row.mini_batch for row in TABLE])
    return compute, _minimax(update, mini_batch / samples * (gradient @ compute))


def _minimax(terms: Floats, targets: Floats) -> Floats:
    """Lawson's algorithm: least squares whose weights move to the worst rows."""
    relative = terms / targets[:, None]
    weight = np.full(len(targets), 1 / len(targets))
    for _ in range(200):
        root = np.sqrt(weight)
        coefficients = np.linalg.lstsq(relative * root[:, None], root, rcond=None)[0]
        weight *= np.abs(relative @ coefficients - 1)
        weight /= weight.sum()
    return np.asarray(coefficients)


def _gradient_terms(row: Setup, sub_batch: int) -> list[float]:
    # fp16 halves computation; loading and preparing an image stays as it is.
    return [sub_batch * (0.5 if row.half_precision else 1.0), float(sub_batch)]


def _update_terms(row: Setup, nodes: int) -> list[float]:
    return [row.all_reduce * log2(nodes), 1.0]


def times(
    row: Setup,
    nodes: int,
    sub_batch: int,
    compute: Floats,
    update: Floats,
) -> tuple[float, float]:
    """T_GPU and T_Update of a configuration."""
    return (
        float(np.array(_gradient_terms(row, sub_batch)) @ compute),
        float(np.array(_update_terms(row, nodes)) @ update),
    )


def optimum(row: Setup, compute: Floats, update: Floats) -> tuple[int, int]:
    """Nodes and sub-batch of the shortest epoch whose mean mini-batch is in the target range."""
    best = (float("inf"), 0, 0)
    largest = LARGEST_SUB_BATCH * (2 if row.half_precision else 1)
    for nodes in range(2, 17):
        for sub_batch in range(1, largest + 1):
            gradient, updating = times(row, nodes, sub_batch, compute, update)
            workers = nodes * GPUS_PER_NODE
            mini_batch = workers * sub_batch * updating / gradient
            if TARGET_MINI_BATCH[0] <= mini_batch <= TARGET_MINI_BATCH[1]:
                best = min(best, (SAMPLES * gradient / (workers * sub_batch), nodes, sub_batch))
    return best[1], best[2]
