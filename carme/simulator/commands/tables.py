"""Terminal output that commands share: wide tables, progress, formatted figures."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.status import Status
from rich.table import Table


def print_wide(table: Table) -> None:
    """Print a table at least 140 columns wide, also into a pipe."""
    width = max(Console().width, 140)
    Console(highlight=False, width=width).print(table)


def progress_bar(what: str) -> Progress:
    """A progress bar on stderr that disappears at the end."""
    return Progress(
        what,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def working(what: str) -> Iterator[Status]:
    """A spinner on stderr for work of a second or more without countable steps."""
    with Console(stderr=True).status(what) as status:
        yield status


def format_emissions(grams: float) -> str:
    """`820 g`, `13.9 kg`, `1.56 t` of CO₂ equivalents."""
    for size, unit in ((1e6, "t"), (1e3, "kg")):
        if grams >= size:
            return f"{grams / size:.3g} {unit} CO₂e"
    return f"{grams:.3g} g CO₂e"


def format_watts(watts: float) -> str:
    """`245 W`, `13.9 kW`."""
    return f"{watts / 1000:.3g} kW" if watts >= 1000 else f"{watts:.3g} W"


def counted(number: int, noun: str) -> str:
    """`1 node`, `8 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
