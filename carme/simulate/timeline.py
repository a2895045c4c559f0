"""To come."""

import click


@click.command()
def timeline() -> None:
    """To come."""
