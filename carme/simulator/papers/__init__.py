"""Published figures beside simulated ones: a module for each paper, a row for each figure."""

from typing import Literal, NamedTuple

Origin = Literal["printed", "worked out", "fitted", "identity"]
"""Of the figure that is compared with: the paper prints it; it was worked out from what the paper
prints; it is printed, but a constant was fitted to it; or it is printed, but the inputs were
computed from it, so that it must come out."""


class PublishedFigure(NamedTuple):
    """A figure of a paper beside the simulated one; without a band it is only shown."""

    figure: str
    reference: str
    """The paper's figure, or what was worked out from it."""
    simulated: float
    unit: str = ""
    low: float = float("-inf")
    high: float = float("inf")
    note: str = ""
    origin: Origin = "printed"

    @property
    def has_band(self) -> bool:
        return (self.low, self.high) != (float("-inf"), float("inf"))

    @property
    def inside(self) -> bool:
        return bool(self.low <= self.simulated <= self.high)


def around(
    figure: str,
    *,
    reference: float,
    simulated: float,
    unit: str = "",
    band: float | None,
    note: str = "",
    origin: Origin = "printed",
) -> PublishedFigure:
    """A row whose band is the reference ± `band`; None: it is only shown."""
    half_width = float("inf") if band is None else band
    return PublishedFigure(
        figure=figure,
        reference=f"{reference:g}",
        simulated=simulated,
        unit=unit,
        low=reference - half_width,
        high=reference + half_width,
        note=note,
        origin=origin,
    )
