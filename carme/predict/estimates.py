"""Estimates: a value with its 90 % interval and its unit."""

from __future__ import annotations

from math import exp, hypot, log
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NORMAL_90 = 1.645
"""Standard deviations around the mean that hold 90 % of a normal distribution."""


class FrozenModel(BaseModel):
    """A frozen model; unknown fields are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class Estimate(FrozenModel):
    """A predicted quantity; the true value is meant to lie in the interval in 90 % of cases."""

    value: Annotated[float, Field(ge=0)]
    low: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]
    unit: str


class Spread(FrozenModel):
    """Uncertainty of a factor: the standard deviation of its logarithm."""

    sigma: Annotated[float, Field(ge=0)]

    def __mul__(self, other: Spread) -> Spread:
        """The spread of a product of two independent factors."""
        return Spread(sigma=hypot(self.sigma, other.sigma))

    def estimate(self, value: float, unit: str) -> Estimate:
        """The value with its interval."""
        width = exp(min(NORMAL_90 * self.sigma, 20.0))
        return Estimate(value=value, low=value / width, high=value * width, unit=unit)

    @classmethod
    def within(cls, factor: float) -> Spread:
        """90 % within a factor: `within(2)` is from half to double."""
        return cls(sigma=log(factor) / NORMAL_90)
