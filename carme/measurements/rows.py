"""A published training run: one row of a CSV file of `published/`, read without judging it."""

from __future__ import annotations

import csv
import io
import re
from typing import NamedTuple

from carme.errors import InputError

REQUIRED = frozenset(
    """
    source_repo model gpu gpus precision micro_batch global_batch throughput
    throughput_unit doubtful
    """.split()  # noqa: SIM905  # one name a line otherwise
)
KERNEL_COLUMNS = frozenset({"time_ms", "fwd_ms"})
"""A table with one of these has times of single kernels or collectives, not of training steps."""
_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([kmbt]?)", re.IGNORECASE)


class PublishedRow(NamedTuple):
    """The cells of one row by column; blank and missing cells are empty."""

    file: str
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """A cell without surrounding blanks."""
        return self.cells.get(column, "").strip()

    def number(self, column: str) -> float | None:
        """A number such as `2048`, `1,024`, `250k` or `20B`; None for blank and other text."""
        return as_number(self.text(column))

    def count(self, column: str, default: int = 0) -> int:
        """A whole number; the default for blank and other text."""
        number = self.number(column)
        return default if number is None else round(number)

    @property
    def source(self) -> str:
        """What the rows of one file come from."""
        return self.file.removesuffix(".csv")


def as_number(text: str) -> float | None:
    """The number that the whole text is, with `k`, `M`, `B` or `T` for powers of thousand."""
    match = _NUMBER.fullmatch(text)
    return float(match[1].replace(",", "")) * _SUFFIX[match[2].lower()] if match else None


def is_kernel_table(text: str) -> bool:
    """Whether a table has times of kernels or collectives instead of training runs."""
    header = next(csv.reader(io.StringIO(text)), [])
    return bool(KERNEL_COLUMNS & set(header)) and "throughput_unit" not in header


def parse_rows(text: str, file: str) -> list[PublishedRow]:
    """The rows of one table. Raises InputError with file and line for one that is malformed."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, [])
        if missing := sorted(REQUIRED - set(header)):
            raise InputError(
                f"{file}, line 1: no column {', '.join(missing)}", "the file's form is not known"
            )
        rows = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{file}, line {reader.line_num}: {len(cells)} cells",
                    f"the header has {len(header)}",
                )
            row = PublishedRow(file, reader.line_num, dict(zip(header, cells, strict=True)))
            throughput = row.number("throughput")
            if throughput is None or throughput <= 0:
                raise InputError(
                    f"{file}, line {reader.line_num}: throughput {row.text('throughput')!r}",
                    "give a number above 0",
                )
            rows.append(row)
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: {error}") from None
    return rows
