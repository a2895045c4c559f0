"""Hardware and workloads as TOML files; `carme.library` reads them."""

from importlib.resources import files


def names(kind: str) -> list[str]:
    """Bundled names of one kind: gpus, links, nodes, storage, workloads, clusters."""
    entries = (entry.name for entry in (files(__name__) / kind).iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))
