"""Carme turns a Slurm GPU cluster into an interactive machine-learning workplace."""

from importlib.metadata import version

__version__ = version("carme")
