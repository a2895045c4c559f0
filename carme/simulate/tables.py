"""What commands share on the terminal: wide tables, and signs of life while they work."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.status import Status
from rich.table import Table


def print_wide(table: Table) -> None:
    """Print a table that needs room: never squeezed into the 80 columns of a pipe."""
    width = max(Console().width, 140)
    Console(highlight=False, width=width).print(table)


def progress_bar(what: str) -> Progress:
    """A bar on stderr that leaves nothing behind."""
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
    """A spinner on stderr for what takes a second and has no steps to count."""
    with Console(stderr=True).status(what) as status:
        yield status
