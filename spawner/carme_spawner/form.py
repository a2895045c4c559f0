"""The spawn form: HTML from what the cluster has, and from HTML back to options."""

from collections.abc import Collection, Mapping
from typing import Any

import jinja2

from carme import library
from carme.config import Preset
from carme.images import Catalogue
from carme.slurm.models import Partition, Snapshot
from carme_spawner.options import LABELS, Options, Problems, format_hours

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme_spawner", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=True,
)

_environment.globals["bundled_workloads"] = library.names("workloads")


def render(
    snapshot: Snapshot | None,
    catalogue: Catalogue,
    presets: tuple[Preset, ...],
    values: Mapping[str, Any],
    found: Problems,
    *,
    projects: Collection[str] = (),
    own_images: bool = False,
    ended_message: str = "",
) -> str:
    """The form with `values` filled in and each problem at its field."""
    partitions = [_partition(snapshot, p) for p in _visible(snapshot)] if snapshot else []
    return _environment.get_template("form.html").render(
        partitions=partitions,
        types=sorted({kind for partition in partitions for kind in partition["types"]}),
        presets=[
            {
                "title": preset.title,
                "description": preset.description,
                "choice": preset.model_dump(
                    exclude={"title", "description"}, exclude_none=True, exclude_defaults=True
                ),
            }
            for preset in presets
        ],
        projects=sorted(projects),
        own_images=own_images,
        ended_message=ended_message,
        images=catalogue.offered(),
        values=values,
        problems=found,
        labels=LABELS,
    )


def _visible(snapshot: Snapshot) -> list[Partition]:
    return [partition for partition in snapshot.partitions if not partition.hidden]


def _partition(snapshot: Snapshot, partition: Partition) -> dict[str, Any]:
    return {
        "name": partition.name,
        "types": [kind for kind in snapshot.gpus_total(partition.name) if kind],
        "hours": format_hours(partition.max_seconds) if partition.max_seconds else None,
    }


def parse(form: Mapping[str, list[str]]) -> dict[str, Any]:
    """What the browser sent as raw options: one value a field, empty fields left out.

    Numbers arrive as text, and the model reads them; unknown fields stay, for it to refuse.
    """
    raw: dict[str, Any] = {}
    for name, sent in form.items():
        if name == "_xsrf":
            continue
        value = sent[-1].strip(" ") if sent and isinstance(sent[-1], str) else ""
        if value or name not in Options.model_fields:
            raw[name] = value
    return raw
