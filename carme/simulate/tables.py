"""Tables on the terminal."""

from rich.console import Console
from rich.table import Table


def print_wide(table: Table) -> None:
    """Print a table that needs room: never squeezed into the 80 columns of a pipe."""
    width = max(Console().width, 140)
    Console(highlight=False, width=width).print(table)
