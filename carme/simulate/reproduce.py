"""To come."""

import click


@click.command()
def reproduce() -> None:
    """To come."""
