"""To come."""

import click


@click.command()
def pareto() -> None:
    """To come."""
