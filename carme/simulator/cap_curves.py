"""How far a power cap lowers the clock: one curve for each architecture that was measured.

The draw above idle is frequency times voltage squared. If the voltage stays, the clock falls with
the draw; if it follows the frequency, with the cube root of the draw. Every curve lies between.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Architecture = Literal[
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "gcn",
    "cdna",
    "gaudi",
]
Points = tuple[tuple[float, float], ...]


class CapCurve(NamedTuple):
    """Points (cap above idle over the uncapped mean draw above idle, relative clock). A cap binds
    somewhat above the mean draw, because the draw has peaks."""

    points: Points
    measured: tuple[float, float] | None
    """Caps between which it was measured, as shares of the power limit; None if it was not."""
    source: str


CAP_CURVES: dict[Architecture, CapCurve] = {
    "volta": CapCurve(
        ((0.0, 0.1), (0.37, 0.424), (0.515, 0.6), (0.66, 0.786), (0.81, 0.873), (0.955, 0.925),
         (1.1, 0.97), (1.25, 1.0)),
        (0.4, 1.0),
        "fitted to time per epoch of ResNet-50 under caps of 100 to 250 W on a V100 PCIe"
        " (ml-energy/zeus traces)",
    ),
    "pascal": CapCurve(
        ((0.0, 0.1), (0.37, 0.42), (0.515, 0.6), (0.7, 0.838), (0.89, 0.918), (1.08, 0.967),
         (1.28, 0.993), (1.47, 1.0)),
        (0.5, 1.0),
        "fitted to time per epoch of ResNet-50 under caps of 125 to 250 W on a P100 PCIe"
        " (ml-energy/zeus traces); below, the V100's",
    ),
}  # fmt: skip

UNMEASURED = CapCurve(
    tuple((round(1.1 * clock**1.5, 3), clock) for clock in (0.1, 0.3, 0.5, 0.7, 0.85, 1.0)),
    None,
    "not measured: the mean of the physical bounds, binding a tenth above the mean draw",
)


def cap_curve(architecture: Architecture | None) -> CapCurve:
    """The curve of an architecture, or the mean of the physical bounds if it was not measured."""
    return CAP_CURVES.get(architecture, UNMEASURED) if architecture else UNMEASURED


def check_bounds(points: Points) -> None:
    """Raises ValueError for a curve that does not rise to 1 or leaves the physical bounds."""
    xs, clocks = zip(*points, strict=True)
    if list(xs) != sorted(xs) or list(clocks) != sorted(clocks) or clocks[-1] != 1.0:
        raise ValueError("cap_curve must rise to a clock of 1")
    for x, clock in points:
        # Draws have peaks: a cap binds up to half above the mean, so the lower bound is loose.
        if 0.1 < x <= 1 and not x / 1.5 <= clock <= x ** (1 / 3) + 0.02:
            raise ValueError(
                f"cap_curve: a clock of {clock:g} at {x:g} of the draw; physics gives"
                f" {x / 1.5:.2f} to {x ** (1 / 3):.2f}"
            )
