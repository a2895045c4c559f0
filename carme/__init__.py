"""Carme turns a Slurm GPU cluster into an interactive machine-learning workplace."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up on first use: small programs start faster without it."""
    if name != "__version__":
        raise AttributeError(f"module 'carme' has no attribute {name!r}")
    from importlib.metadata import version

    return version("carme")
