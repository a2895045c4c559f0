"""Grams of CO2 equivalent and money per kWh: from the configuration, or a file kept current."""

import json
from dataclasses import dataclass
from pathlib import Path

UJ_PER_KWH = 3.6e12
_MOST = 100_000.0


@dataclass(frozen=True)
class EmissionFactors:
    """What a kWh stands for now; None is not configured."""

    grams_per_kwh: float | None = None
    price_per_kwh: float | None = None


def current(static: EmissionFactors, file: Path | None) -> EmissionFactors:
    """The file's factors where it has them (and they make sense), else the static ones."""
    if file is None:
        return static
    try:
        factors = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return static
    if not isinstance(factors, dict):
        return static
    return EmissionFactors(
        _sensible(factors.get("grams_per_kwh"), static.grams_per_kwh),
        _sensible(factors.get("price_per_kwh"), static.price_per_kwh),
    )


def _sensible(value: object, otherwise: float | None) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST:
        return float(value)
    return otherwise
