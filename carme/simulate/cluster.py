"""To come."""

import click


@click.command()
def cluster() -> None:
    """To come."""
