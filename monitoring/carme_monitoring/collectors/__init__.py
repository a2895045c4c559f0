"""The collectors, by source. Every collector class in a module of this package is used."""

import importlib
import inspect
import pkgutil
from typing import Any

from carme_monitoring.collector import Collector, CollectorContext, Mode


def collector_types() -> list[type[Collector[Any]]]:
    """Every collector class of this package, in the order in which they are read."""
    types = []
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for member in vars(module).values():
            is_collector = inspect.isclass(member) and issubclass(member, Collector)
            if is_collector and member.__module__ == module.__name__:
                types.append(member)
    return sorted(types, key=lambda kind: (kind.stage, kind.order, kind.name))


def make_collectors(mode: Mode, context: CollectorContext) -> list[Collector[Any]]:
    """The collectors of a mode whose sources are configured."""
    return [
        kind(context)
        for kind in collector_types()
        if mode in kind.modes and (not kind.requires or getattr(context, kind.requires) is not None)
    ]
