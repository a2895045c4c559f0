"""Published figures beside simulated ones: a module for each paper, a row for each figure."""

from typing import NamedTuple


class PublishedFigure(NamedTuple):
    """A published figure beside the simulated one; without a band it is only shown."""

    figure: str
    published: str
    simulated: float
    unit: str = ""
    low: float = float("-inf")
    high: float = float("inf")
    note: str = ""

    @property
    def has_band(self) -> bool:
        return (self.low, self.high) != (float("-inf"), float("inf"))

    @property
    def inside(self) -> bool:
        return bool(self.low <= self.simulated <= self.high)


def around(
    figure: str,
    *,
    published: float,
    simulated: float,
    unit: str = "",
    band: float,
    note: str = "",
) -> PublishedFigure:
    """A row whose band is the published figure ± `band`."""
    return PublishedFigure(
        figure=figure,
        published=f"{published:g}",
        simulated=simulated,
        unit=unit,
        low=published - band,
        high=published + band,
        note=note,
    )
