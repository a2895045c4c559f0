"""Samples on their way to an answer: family by family, label values in the table's order."""

from collections.abc import Iterator, Mapping

LabelValues = tuple[str, ...]
Family = dict[LabelValues, float]


class Samples:
    """The samples of one collection. A family's label values are unique: a later one replaces."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, name: str, labels: LabelValues, value: float | None) -> None:
        """Add a sample; None adds nothing."""
        if value is not None:
            self.families.setdefault(name, {})[labels] = value

    def increase(self, name: str, labels: LabelValues, value: float) -> None:
        """Add to a sample that may be there already."""
        family = self.families.setdefault(name, {})
        family[labels] = family.get(labels, 0.0) + value

    def value(self, name: str, *labels: str) -> float | None:
        """One sample's value."""
        return self.families.get(name, {}).get(labels)

    def __len__(self) -> int:
        return sum(len(family) for family in self.families.values())

    def __iter__(self) -> Iterator[tuple[str, LabelValues, float]]:
        for name, family in self.families.items():
            for labels, value in family.items():
                yield name, labels, value


class LabelledCounter:
    """Counters that only grow, by label values."""

    def __init__(self, start: Mapping[LabelValues, float] | None = None) -> None:
        self.values: Family = dict(start or {})

    def add(self, labels: LabelValues, amount: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount
