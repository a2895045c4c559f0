"""How often the intervals of predictions held here."""

from __future__ import annotations

from typing import ClassVar, Literal

from carme.predict.estimates import FrozenModel


class Coverage(FrozenModel):
    """Counts of predictions made for jobs that have ended; only a job that ran to its end
    (COMPLETED) is judged."""

    COUNTS: ClassVar[tuple[str, ...]] = (
        "ended", "time_judged", "time_within", "energy_judged", "energy_within",
    )  # fmt: skip

    kind: Literal["session", "job"]
    """Sessions also hold the time in which people think."""
    source: Literal["data sheet", "fit", "history"]
    ended: int
    time_judged: int
    time_within: int
    energy_judged: int
    """Fewer than `time_judged` where no exporter measured the GPUs."""
    energy_within: int


class CoverageAnswer(FrozenModel):
    """Over everybody's jobs, in counts."""

    meant: float = 0.9
    """Share of the intervals that should hold."""
    items: tuple[Coverage, ...]
