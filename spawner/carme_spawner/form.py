"""The spawn form: HTML from what the cluster has, and the browser's data back to raw options."""

from collections.abc import Collection, Mapping
from typing import Any

import jinja2
from carme.requests.problems import Problems

from carme import library
from carme.config import Preset
from carme.images.catalogue import Catalogue
from carme.requests.placement import features as features_of
from carme.requests.resource_request import AdviceRequest, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import describe
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from carme.units import format_duration, hours_within
from carme_spawner.options import LABELS, SessionOptions, summary
from carme_spawner.static_files import static_urls

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme_spawner", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=True,
)

_environment.globals["bundled_workloads"] = library.names("workloads")
# The scripts of the form send these fields.
_environment.globals["fields"] = {
    "outlook": [*ResourceRequest.model_fields, "image"],
    "advice": list(AdviceRequest.model_fields),
}


def render(
    snapshot: Snapshot | None,
    catalogue: Catalogue,
    presets: tuple[Preset, ...],
    values: Mapping[str, Any],
    problems: Problems,
    *,
    user: SlurmUser,
    now: float,
    projects: Collection[str] = (),
    own_images: bool = False,
    max_nodes: int = 1,
    ended_message: str = "",
    base_url: str = "/",
) -> str:
    """The form with `values` filled in and each problem at its field."""
    shown = _visible(snapshot, user) if snapshot else []
    partitions = [_partition(snapshot, partition) for partition in shown] if snapshot else []
    rights = _rights(user)
    reservations = _reservations(snapshot, user, now) if snapshot else []
    features = sorted({name for partition in partitions for name in partition["features"]})
    absent = {
        "account": not rights["accounts"],
        "qos": not rights["chooses_qos"],
        "reservation": not reservations,
        "constraint": not features,
        "project": not projects,
        "own_image": not own_images,
    }
    return _environment.get_template("form.html").render(
        partitions=partitions,
        types=sorted({kind for partition in partitions for kind in partition["types"]}),
        presets=presets,
        rights=rights,
        reservations=reservations,
        features=features,
        projects=sorted(projects),
        own_images=own_images,
        max_nodes=max_nodes,
        ended_message=ended_message,
        images=catalogue.offered(),
        values={name: _without_point_zero(value) for name, value in values.items()},
        problems=_placed(problems, absent),
        labels=LABELS,
        static=static_urls(base_url),
    )


def _placed(problems: Problems, absent: Mapping[str, bool]) -> Problems:
    """The problems at their fields; those of fields that the form does not show stand above it."""
    at_fields = {name: text for name, text in problems.items() if name and not absent.get(name)}
    above = {name: text for name, text in problems.items() if name not in at_fields}
    return {**at_fields, "": summary(above)} if above else at_fields


def _without_point_zero(value: Any) -> Any:
    """`2` for 2.0."""
    return f"{value:g}" if isinstance(value, float) else value


def _visible(snapshot: Snapshot, user: SlurmUser) -> list[Partition]:
    """The partitions that this user may use; all that are not hidden if that is none."""
    shown = [partition for partition in snapshot.partitions if not partition.hidden]
    return [partition for partition in shown if user.may_use(partition)] or shown


def _rights(user: SlurmUser) -> dict[str, Any]:
    """Accounts and QoS for the form, which shows a field where there is a choice."""
    rights = user.rights
    associations = [a for a in rights.associations if a.qos or a.account] if rights else []
    return {
        "accounts": user.accounts if user.chooses_account else (),
        "default_account": rights.default_account if rights else "",
        "chooses_qos": user.chooses_qos,
        "associations": [
            {
                "account": item.account,
                "partition": item.partition,
                "qos": item.qos,
                "default_qos": rights.default_qos(item.account, item.partition) if rights else "",
            }
            for item in associations
        ],
        "limits": {qos.name: describe(qos.limits) for qos in rights.qos} if rights else {},
    }


def _reservations(snapshot: Snapshot, user: SlurmUser, now: float) -> list[dict[str, str]]:
    rows = []
    for reservation in user.reservations(snapshot, now):
        starts_at, ends_at = reservation.starts_at or 0, reservation.ends_at
        if starts_at > now:
            when = f"begins in {format_duration(starts_at - now)}"
        else:
            when = f"{format_duration(ends_at - now)} left" if ends_at else "now"
        count = len(reservation.nodes)
        nodes = "1 node" if count == 1 else f"{count} nodes"
        rows.append({"name": reservation.name, "when": f"{nodes}, {when}"})
    return rows


def _partition(snapshot: Snapshot, partition: Partition) -> dict[str, Any]:
    return {
        "name": partition.name,
        "types": [kind for kind in snapshot.gpus_total(partition.name) if kind],
        "features": features_of(snapshot, partition.name),
        "hours": hours_within(partition.max_seconds) if partition.max_seconds else None,
    }


def parse(form: Mapping[str, list[str]]) -> dict[str, Any]:
    """The browser's data as raw options: one value a field, empty fields left out.

    Numbers stay text, which the model reads; unknown fields stay, so that the model refuses them.
    """
    raw: dict[str, Any] = {}
    for name, sent in form.items():
        if name == "_xsrf":
            continue
        value = sent[-1].strip(" ") if sent and isinstance(sent[-1], str) else ""
        if value or name not in SessionOptions.model_fields:
            raw[name] = value
    return raw
