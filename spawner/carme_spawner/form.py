"""The spawn form: HTML from what the cluster has, and the browser's data back to raw options."""

import hashlib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import jinja2
from annotated_types import Ge, Gt, Le, MaxLen
from pydantic.fields import FieldInfo

import carme.web
from carme import data
from carme.config import Config
from carme.images.catalogue import Catalogue
from carme.requests.placement import features as features_of
from carme.requests.resource_request import AdviceRequest, Problems, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import describe
from carme.slurm.snapshot import Snapshot
from carme.units import format_duration, hours_within
from carme_spawner.cluster_state import FORM_MAX_AGE_SECONDS
from carme_spawner.options import SessionOptions

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme_spawner", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=True,
)

STATIC_FOLDERS = {
    "carme": Path(__file__).with_name("static"),
    "carme-web": Path(carme.web.__file__).with_name("static"),
}
"""Scripts and styles of the hub's pages."""

SMALLEST_ABOVE_ZERO = 0.01
"""The least value of an input that must be above zero: HTML has no exclusive bounds."""


def _input_attributes(field: FieldInfo) -> dict[str, Any]:
    """The HTML attributes for the type and the bounds of a field of the model."""
    kind: Any = field.annotation
    bounds = list(field.metadata)
    for alternative in get_args(kind):  # of a field that can be unset
        if get_origin(alternative) is Annotated:
            kind, *annotations = get_args(alternative)
            bounds += [m for a in annotations if isinstance(a, FieldInfo) for m in a.metadata]
    steps: dict[Any, dict[str, Any]] = {int: {"step": 1}, float: {"step": "any"}}
    attributes = steps.get(kind, {})
    for bound in bounds:
        match bound:
            case Ge(ge=minimum):
                attributes["min"] = minimum
            case Gt():
                attributes["min"] = SMALLEST_ABOVE_ZERO
            case Le(le=maximum):
                attributes["max"] = maximum
            case MaxLen(max_length=length):
                attributes["maxlength"] = length
    return attributes


_environment.globals["input_attributes"] = {
    name: _input_attributes(field) for name, field in SessionOptions.model_fields.items()
}
_environment.globals["max_age_seconds"] = FORM_MAX_AGE_SECONDS
_environment.globals["bundled_workloads"] = data.names("workloads")
# The scripts of the form send these fields.
_environment.globals["fields"] = {
    "outlook": list(ResourceRequest.model_fields),
    "advice": list(AdviceRequest.model_fields),
}


@cache
def static_urls(base_url: str) -> dict[str, str]:
    """`form_js` and the like to the addresses of files, for a hub below `base_url`.

    A browser keeps a file for years: another content has another address.
    """
    urls = {}
    for folder, root in STATIC_FOLDERS.items():
        for path in sorted(root.iterdir()):
            version = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            url = f"{base_url}hub/static-{folder}/{path.name}?v={version}"
            urls[path.name.replace(".", "_")] = url
    return urls


def render(
    config: Config,
    snapshot: Snapshot | None,
    catalogue: Catalogue,
    values: Mapping[str, Any],
    problems: Problems,
    *,
    user: SlurmUser,
    now: float,
    projects: Collection[str] = (),
    ended_message: str = "",
) -> str:
    """The form with `values` filled in and each problem at its field."""
    partitions = _partitions(snapshot, user) if snapshot else []
    rights = _rights(user)
    reservations = _reservations(snapshot, user, now) if snapshot else []
    features = sorted({name for partition in partitions for name in partition["features"]})
    absent = {
        "account": not rights["accounts"],
        "qos": not rights["chooses_qos"],
        "reservation": not reservations,
        "constraint": not features,
        "project": not projects,
        "own_image": not config.images.own_images,
    }
    # Problems of fields that the form does not show stand above it.
    at_fields = {name: text for name, text in problems.items() if name and not absent.get(name)}
    above = {name: text for name, text in problems.items() if name not in at_fields}
    return _environment.get_template("form.html").render(
        partitions=partitions,
        types=sorted({kind for partition in partitions for kind in partition["types"]}),
        presets=config.session.presets,
        rights=rights,
        reservations=reservations,
        features=features,
        projects=sorted(projects),
        own_images=config.images.own_images,
        max_nodes=config.session.max_nodes,
        ended_message=ended_message,
        images=catalogue.offered(),
        # `2` for 2.0
        values={k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items()},
        problems=at_fields | ({"": SessionOptions.summary(above)} if above else {}),
        labels=SessionOptions.labels(),
        static=static_urls(config.hub.base_url),
    )


def _partitions(snapshot: Snapshot, user: SlurmUser) -> list[dict[str, Any]]:
    """The partitions that this user may use; all that are not hidden if that is none."""
    listed = [partition for partition in snapshot.partitions if not partition.hidden]
    return [
        {
            "name": partition.name,
            "types": [kind for kind in snapshot.gpus_total(partition.name) if kind],
            "features": features_of(snapshot, partition.name),
            "hours": hours_within(partition.max_seconds) if partition.max_seconds else None,
        }
        for partition in [p for p in listed if user.may_use(p)] or listed
    ]


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
            time_text = f"begins in {format_duration(starts_at - now)}"
        else:
            time_text = f"{format_duration(ends_at - now)} left" if ends_at else "now"
        count = len(reservation.nodes)
        nodes = "1 node" if count == 1 else f"{count} nodes"
        rows.append({"name": reservation.name, "when": f"{nodes}, {time_text}"})
    return rows


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
