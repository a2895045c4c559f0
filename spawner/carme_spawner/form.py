"""The spawn form: HTML from what the cluster has, and from HTML back to options."""

from collections.abc import Mapping
from typing import Any

import jinja2

from carme.images import Catalogue
from carme.slurm.models import Snapshot
from carme_spawner.options import LABELS, Options, Problems, format_hours

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme_spawner", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=True,
)


def render(
    snapshot: Snapshot | None, catalogue: Catalogue, values: Mapping[str, Any], found: Problems
) -> str:
    """The form with `values` filled in and each problem at its field."""
    return _environment.get_template("form.html").render(
        partitions=[_partition(snapshot, p.name) for p in _visible(snapshot)] if snapshot else [],
        images=catalogue.offered(),
        values=values,
        problems=found,
        labels=LABELS,
    )


def _visible(snapshot: Snapshot) -> list[Any]:
    return [partition for partition in snapshot.partitions if not partition.hidden]


def _partition(snapshot: Snapshot, name: str) -> dict[str, Any]:
    partition = snapshot.partition(name)
    total, free = snapshot.gpus_total(name), snapshot.gpus_free(name)
    limit = partition.max_seconds if partition else None
    return {
        "name": name,
        "gpus": {
            kind or "any": f"{free.get(kind, 0)} of {count} free" for kind, count in total.items()
        },
        "types": [kind for kind in total if kind],
        "cpus": sum(node.cpus_free for node in snapshot.nodes_in(name)),
        "hours": format_hours(limit) if limit else None,
    }


def parse(form: Mapping[str, list[str]]) -> dict[str, Any]:
    """What the browser sent as raw options: one value a field, empty fields left out.

    Numbers arrive as text, and the model reads them; unknown fields stay, for it to refuse.
    """
    raw: dict[str, Any] = {}
    for name, sent in form.items():
        if name == "_xsrf":
            continue
        value = sent[-1].strip() if sent and isinstance(sent[-1], str) else ""
        if value or name not in Options.model_fields:
            raw[name] = value
    return raw
