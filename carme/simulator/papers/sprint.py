"""Oyama et al. 2016: mini-batch size, staleness and epoch time of asynchronous SGD (SPRINT)."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carme.simulator.papers import PublishedFigure
from carme.simulator.runs.asynchronous import closed_form, simulate_staleness

SAMPLES = 1_281_167
GPUS_PER_NODE = 8
"""Not in the text; with it the table's rows are consistent."""
WANTED = (138 * 0.75, 138 * 1.25)
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
    Setup("baseline", False, 1.0, 8, 8, 165.1, 1779, 0.711, 0.229),
    Setup("FP16", True, 1.0, 7, 22, 170.1, 1462, 1.406, 0.194),
    Setup("EDR", False, 7 / 12.5, 12, 11, 166.6, 1245, 1.026, 0.162),
    Setup("FP16 + EDR", True, 7 / 12.5, 8, 15, 171.5, 1128, 0.845, 0.151),
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
        formula = closed_form(gradient, update, gpus, row.sub_batch, SAMPLES)
        events = simulate_staleness(
            gradient, update, gpus, row.sub_batch, SAMPLES, jitter=0.05, update_jitter=0.05
        )
        for way, statistics, band in (("closed form", formula, 0.001), ("events", events, 0.02)):
            figures.append(
                _relative(
                    f"{row.name}: epoch, {way}",
                    row.epoch_seconds,
                    statistics.epoch_seconds,
                    "s",
                    band,
                )
            )
            figures.append(
                _relative(
                    f"{row.name}: mini-batch, {way}",
                    row.mini_batch,
                    statistics.mini_batch.mean,
                    "",
                    band,
                )
            )
        r = gradient / update
        figures.append(
            PublishedFigure(
                f"{row.name}: staleness, events",
                f"{r + 1:.2f}",
                events.staleness.mean,
                "",
                (r + 1) * 0.98,
                (r + 1) * 1.02,
                "r + 1, the closed form's mean",
            )
        )
    return figures + what_if()


def what_if() -> list[PublishedFigure]:
    """Four coefficients fitted on all rows: the rows again, and the optimum's node count."""
    compute, update = fit()
    figures = []
    note = "in-sample: coefficients fitted on these rows"
    for row in TABLE:
        gradient, updating = times(row, row.nodes, row.sub_batch, compute, update)
        statistics = closed_form(
            gradient, updating, row.nodes * GPUS_PER_NODE, row.sub_batch, SAMPLES
        )
        nodes, _ = optimum(row, compute, update)
        figures += [
            _relative(
                f"{row.name}: epoch, what-if",
                row.epoch_seconds,
                statistics.epoch_seconds,
                "s",
                0.07,
                note,
            ),
            _relative(
                f"{row.name}: mini-batch, what-if",
                row.mini_batch,
                statistics.mini_batch.mean,
                "",
                0.12,
                note,
            ),
            PublishedFigure(
                f"{row.name}: fastest node count, what-if",
                f"{row.nodes}",
                nodes,
                "",
                row.nodes - 1,
                row.nodes + 1,
                note,
            ),
        ]
    return figures


def fit() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coefficients of T_GPU = a·(computation) + b·(images) and
    T_Update = c·(all-reduce)·log₂(nodes) + d: the first for the smallest worst error of the epoch
    times, the second, given the first, for that of the mini-batches."""
    gradient = np.array([_gradient_terms(row, row.sub_batch) for row in TABLE])
    compute = _minimax(gradient, np.array([exact_inputs(row)[0] for row in TABLE]))
    update = np.array([_update_terms(row, row.nodes) for row in TABLE])
    samples = np.array([row.nodes * GPUS_PER_NODE * row.sub_batch for row in TABLE])
    mini_batch = np.array([row.mini_batch for row in TABLE])
    return compute, _minimax(update, mini_batch / samples * (gradient @ compute))


def _minimax(terms: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
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
    compute: NDArray[np.float64],
    update: NDArray[np.float64],
) -> tuple[float, float]:
    """T_GPU and T_Update of a configuration."""
    return (
        float(np.array(_gradient_terms(row, sub_batch)) @ compute),
        float(np.array(_update_terms(row, nodes)) @ update),
    )


def optimum(
    row: Setup, compute: NDArray[np.float64], update: NDArray[np.float64]
) -> tuple[int, int]:
    """Nodes and sub-batch of the shortest epoch whose mean mini-batch is in the targets range."""
    best = (float("inf"), 0, 0)
    largest = LARGEST_SUB_BATCH * (2 if row.half_precision else 1)
    for nodes in range(2, 17):
        for sub_batch in range(1, largest + 1):
            gradient, updating = times(row, nodes, sub_batch, compute, update)
            workers = nodes * GPUS_PER_NODE
            mini_batch = workers * sub_batch * updating / gradient
            if WANTED[0] <= mini_batch <= WANTED[1]:
                best = min(best, (SAMPLES * gradient / (workers * sub_batch), nodes, sub_batch))
    return best[1], best[2]


def _relative(
    figure: str, published: float, simulated: float, unit: str, band: float, note: str = ""
) -> PublishedFigure:
    low, high = published * (1 - band), published * (1 + band)
    return PublishedFigure(figure, f"{published:g}", simulated, unit, low, high, note)
