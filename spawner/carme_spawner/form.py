"""The spawn form: HTML from what the cluster has, and from HTML back to options."""

from collections.abc import Collection, Mapping
from typing import Any

import jinja2

from carme import library
from carme.config import Preset
from carme.images.catalogue import Catalogue
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from carme.units import format_duration, hours_within
from carme_spawner.options import LABELS, Options, Problems, summary
from carme_spawner.slurm_user import SlurmUser
from carme_spawner.user_limits import describe

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
    person: SlurmUser,
    now: float,
    projects: Collection[str] = (),
    own_images: bool = False,
    max_nodes: int = 1,
    ended_message: str = "",
) -> str:
    """The form with `values` filled in and each problem at its field."""
    offered = _visible(snapshot, person) if snapshot else []
    partitions = [_partition(snapshot, p) for p in offered] if snapshot else []
    rights = _rights(person)
    reservations = _reservations(snapshot, person, now) if snapshot else []
    absent = {
        "account": not rights["accounts"],
        "qos": not rights["chooses_qos"],
        "reservation": not reservations,
        "project": not projects,
        "own_image": not own_images,
    }
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
        rights=rights,
        reservations=reservations,
        projects=sorted(projects),
        own_images=own_images,
        max_nodes=max_nodes,
        ended_message=ended_message,
        images=catalogue.offered(),
        values={name: _plain(value) for name, value in values.items()},
        problems=_placed(found, absent),
        labels=LABELS,
    )


def _placed(found: Problems, absent: Mapping[str, bool]) -> Problems:
    """The problems; those of fields that are not in the form stand above it."""
    here = {name: text for name, text in found.items() if name and not absent.get(name)}
    above = {name: text for name, text in found.items() if name not in here}
    return {**here, "": summary(above)} if above else here


def _plain(value: Any) -> Any:
    """`2` for 2.0: an hour is not more exact for a point."""
    return f"{value:g}" if isinstance(value, float) else value


def _visible(snapshot: Snapshot, person: SlurmUser) -> list[Partition]:
    """The partitions that this person can get into; all that are shown if that is none."""
    shown = [partition for partition in snapshot.partitions if not partition.hidden]
    return [partition for partition in shown if person.may_use(partition)] or shown


def _rights(person: SlurmUser) -> dict[str, Any]:
    """Accounts and QoS for the form; it shows a field where there is a choice."""
    rights = person.rights
    own = [item for item in rights.associations if item.qos or item.account] if rights else []
    return {
        "accounts": person.accounts if person.chooses_account else (),
        "default_account": rights.default_account if rights else "",
        "chooses_qos": person.chooses_qos,
        "associations": [
            {
                "account": item.account,
                "partition": item.partition,
                "qos": item.qos,
                "default_qos": rights.default_qos(item.account, item.partition) if rights else "",
            }
            for item in own
        ],
        "limits": {qos.name: describe(qos.limits) for qos in rights.qos} if rights else {},
    }


def _reservations(snapshot: Snapshot, person: SlurmUser, now: float) -> list[dict[str, str]]:
    found = []
    for plan in person.reservations(snapshot, now):
        if (plan.starts_at or 0) > now:
            when = f"begins in {format_duration((plan.starts_at or 0) - now)}"
        else:
            when = f"{format_duration(plan.ends_at - now)} left" if plan.ends_at else "now"
        found.append({"name": plan.name, "when": f"{_nodes(len(plan.nodes))}, {when}"})
    return found


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _partition(snapshot: Snapshot, partition: Partition) -> dict[str, Any]:
    return {
        "name": partition.name,
        "types": [kind for kind in snapshot.gpus_total(partition.name) if kind],
        "hours": hours_within(partition.max_seconds) if partition.max_seconds else None,
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
