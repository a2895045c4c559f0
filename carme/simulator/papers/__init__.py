"""Published figures beside simulated ones: a module for each paper, a row for each figure."""

from typing import NamedTuple


class PublishedFigure(NamedTuple):
    """A published figure beside the simulated one; without a band it is shown, not judged."""

    figure: str
    published: str
    simulated: float
    unit: str = ""
    low: float = float("-inf")
    high: float = float("inf")
    note: str = ""

    @property
    def judged(self) -> bool:
        return (self.low, self.high) != (float("-inf"), float("inf"))

    @property
    def inside(self) -> bool:
        return bool(self.low <= self.simulated <= self.high)


def around(
    figure: str, published: float, simulated: float, unit: str, band: float, note: str = ""
) -> PublishedFigure:
    """A row whose band is the published figure ± `band`."""
    return PublishedFigure(
        figure, f"{published:g}", simulated, unit, published - band, published + band, note
    )
