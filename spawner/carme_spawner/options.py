"""The options of a session: one model for the form and for the REST API."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from carme.config import SessionSettings
from carme.errors import InputError
from carme.images.catalogue import Catalogue
from carme.requests.resource_request import AdviceRequest, Problems
from carme.slurm.snapshot import Snapshot
from carme.system.users import groups_of


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


def defaults(
    settings: SessionSettings, snapshot: Snapshot | None, catalogue: Catalogue
) -> dict[str, Any]:
    """The first values of the form, and of the options that a REST request leaves out.

    The time may be longer than the user may have; `with_allowed_hours` reduces it.
    """
    partitions = snapshot.partitions if snapshot else ()
    partition = (snapshot and snapshot.partition()) or next(iter(partitions), None)
    images = catalogue.offered()
    return {
        **{name: field.get_default() for name, field in SessionOptions.model_fields.items()},
        "partition": partition.name if partition else "",
        "gpus": 1 if partition and partition.gpus else 0,
        "cpus": settings.default_cpus,
        "memory_gb": settings.default_memory_gb,
        "hours": settings.default_hours,
        "image": images[0].name if images else "",
    }


def option_problems(
    options: SessionOptions, catalogue: Catalogue, projects: Collection[str] = ()
) -> Problems:
    """Image, application and project that do not exist; empty if all do."""
    refused: Problems = {}
    if not options.own_image:
        try:
            image = catalogue.find(options.image)
            names = [application.name for application in image.applications]
            if options.application and options.application not in names:
                offered = ", ".join(names) or "JupyterLab only"
                refused["application"] = f"{image.id} offers {offered}"
        except InputError:
            offered = ", ".join(image.id for image in catalogue.offered()) or "none"
            refused["image"] = f"there is no image {options.image}; offered: {offered}"
    if options.project and options.project not in projects:
        own_projects = ", ".join(projects) or "none"
        refused["project"] = f"you have no project folder {options.project}; yours: {own_projects}"
    return refused


def project_folders(root: Path | None, user: str) -> dict[str, Path]:
    """Group to project folder: a folder below `root` that one of the user's groups owns."""
    folders = {name: (root / name, gid) for name, gid in groups_of(user).items()} if root else {}
    return {
        name: folder
        for name, (folder, gid) in sorted(folders.items())
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_gid == gid
    }
