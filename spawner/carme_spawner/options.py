"""The options of a session: one model for the form and for the REST API."""

from collections.abc import Collection
from typing import Annotated, Any

from carme.requests.problems import Problems
from pydantic import Field

from carme.config import SessionSettings
from carme.errors import InputError
from carme.images.catalogue import Catalogue
from carme.requests import problems
from carme.requests.placement import cluster_problems
from carme.requests.resource_request import AdviceRequest
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from carme.units import hours_within


class SessionOptions(AdviceRequest):
    """Resources and workload of a session, and the container that it runs in."""

    image: Annotated[
        str,
        Field(
            title="Image",
            pattern=r"^[a-z][a-z0-9-]{0,39}(:[0-9A-Za-z][0-9A-Za-z._-]{0,39})?$",
        ),
    ]
    own_image: Annotated[
        str,
        Field(
            title="An image of your own",
            pattern=r"^(/[^\x00-\x1f\x7f]{1,1000})?$",
            description="The path of a user's SIF file, used instead of `image`.",
        ),
    ] = ""
    application: Annotated[
        str,
        Field(
            title="Application",
            pattern=r"^([a-z][a-z0-9-]{0,39})?$",
            description="Empty: the first application of the image.",
        ),
    ] = ""
    project: Annotated[
        str,
        Field(
            title="Project folder",
            pattern=r"^([a-z_][a-z0-9_-]{0,31})?$",
            description="The group whose folder the session works in; empty: the user's home.",
        ),
    ] = ""


LABELS = problems.labels(SessionOptions)


def defaults(
    settings: SessionSettings, snapshot: Snapshot | None, catalogue: Catalogue
) -> dict[str, Any]:
    """The first values of the form, and of the options that a REST request leaves out."""
    partition = _default_partition(snapshot)
    images = catalogue.offered()
    hours = settings.default_hours
    if partition and partition.max_seconds:
        hours = min(hours, hours_within(partition.max_seconds))
    return {
        **{name: field.get_default() for name, field in SessionOptions.model_fields.items()},
        "partition": partition.name if partition else "",
        "gpus": 1 if partition and partition.gpus else 0,
        "cpus": settings.default_cpus,
        "memory_gb": settings.default_memory_gb,
        "hours": hours,
        "image": images[0].name if images else "",
    }


def _default_partition(snapshot: Snapshot | None) -> Partition | None:
    if not snapshot or not snapshot.partitions:
        return None
    return snapshot.partition() or snapshot.partitions[0]


def parse(raw: dict[str, Any]) -> tuple[SessionOptions | None, Problems]:
    """The options in `raw`, or what is wrong with which field."""
    return problems.parse(SessionOptions, raw)


def option_problems(
    options: SessionOptions,
    snapshot: Snapshot,
    catalogue: Catalogue,
    projects: Collection[str] = (),
    max_nodes: int | None = None,
) -> Problems:
    """Options that cluster, catalogue or projects do not have; empty when all are there."""
    refused = {
        **_image_problems(options, catalogue),
        **cluster_problems(options, snapshot, max_nodes),
    }
    if options.project and options.project not in projects:
        yours = ", ".join(projects) or "none"
        refused["project"] = f"you have no project folder {options.project}; yours: {yours}"
    return refused


def _image_problems(options: SessionOptions, catalogue: Catalogue) -> Problems:
    if options.own_image:
        return {}
    try:
        image = catalogue.find(options.image)
    except InputError:
        offered = ", ".join(image.id for image in catalogue.offered()) or "none"
        return {"image": f"there is no image {options.image}; offered: {offered}"}
    names = [application.name for application in image.applications]
    if options.application and options.application not in names:
        return {"application": f"{image.id} offers {', '.join(names) or 'JupyterLab only'}"}
    return {}


def summary(refused: Problems) -> str:
    """All problems in one line, for REST clients and the log."""
    return problems.summary(refused, SessionOptions)
