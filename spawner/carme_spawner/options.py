"""What a user may ask for: one model for the form and for the REST API.

The model knows forms and kinds; `problems` knows the cluster and says what does not fit it.
"""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from carme.config import SessionSettings
from carme.errors import InputError
from carme.images.catalogue import Catalogue
from carme.slurm.models import Partition
from carme.slurm.snapshot import Snapshot
from carme.units import format_bytes, hours_within

GIB = 2**30
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
OptionalName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")]
Problems = dict[str, str]
"""Field to message; the empty name is for what belongs to no field."""


class Options(BaseModel):
    """A checked choice. Only these keys are known; numbers are numbers, names are names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    partition: Name
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    """GPUs, cores and memory are those of each node."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_type: OptionalName = ""
    cpus: Annotated[int, Field(ge=1, le=4096)]
    memory_gb: Annotated[int, Field(ge=1, le=65536)]
    hours: Annotated[float, Field(gt=0, le=24 * 365, allow_inf_nan=False)]
    workload: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._ -]{0,63})?$")] = ""
    """What is to be trained, for a prediction; empty means that nothing is said about it."""
    batch: Annotated[int, Field(ge=1, le=10**7)] | None = None
    """Of the workload; its usual one if unset."""
    epochs: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)] | None = None
    """Of the workload; its usual number if unset."""
    image: Annotated[
        str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}(:[0-9A-Za-z][0-9A-Za-z._-]{0,39})?$")
    ]
    own_image: Annotated[str, Field(pattern=r"^(/[^\x00-\x1f\x7f]{1,1000})?$")] = ""
    """The path of a SIF of the user's own, instead of `image`; checked as the user."""
    application: Annotated[str, Field(pattern=r"^([a-z][a-z0-9-]{0,39})?$")] = ""
    """What to open; empty means the first that the image offers."""
    project: Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_-]{0,31})?$")] = ""
    """The group whose folder the session works in; empty means the user's home."""
    account: OptionalName = ""
    """Who the work is charged to; empty means the user's default account."""
    qos: OptionalName = ""
    """The quality of service; empty means the account's default."""
    reservation: OptionalName = ""
    """Nodes set aside; empty means none."""

    @field_validator("nodes", "gpus", "cpus", "memory_gb", "hours", mode="before")
    @classmethod
    def _no_truth(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("this is not a number")
        return value

    @property
    def seconds(self) -> int:
        """The time limit; at least a minute, Slurm's smallest."""
        return max(60, round(self.hours * 3600))


LABELS = {
    "partition": "Partition",
    "nodes": "Nodes",
    "gpus": "GPUs",
    "gpu_type": "GPU type",
    "cpus": "CPU cores",
    "memory_gb": "Memory (GiB)",
    "hours": "Time (hours)",
    "workload": "Workload",
    "batch": "Batch",
    "epochs": "Epochs",
    "image": "Image",
    "own_image": "An image of your own",
    "application": "Application",
    "project": "Project folder",
    "account": "Account",
    "qos": "Quality of service",
    "reservation": "Reservation",
}


def defaults(
    settings: SessionSettings, snapshot: Snapshot | None, catalogue: Catalogue
) -> dict[str, Any]:
    """What the form shows at first, and what REST options leave out."""
    partition = _default_partition(snapshot)
    offered = catalogue.offered()
    most = hours_within(partition.max_seconds) if partition and partition.max_seconds else None
    hours = min(settings.default_hours, most) if most else settings.default_hours
    return {
        "partition": partition.name if partition else "",
        "nodes": 1,
        "gpus": 1 if partition and partition.gpus else 0,
        "gpu_type": "",
        "cpus": settings.default_cpus,
        "memory_gb": settings.default_memory_gb,
        "hours": hours,
        "workload": "",
        "batch": None,
        "epochs": None,
        "image": offered[0].name if offered else "",
        "own_image": "",
        "application": "",
        "project": "",
        "account": "",
        "qos": "",
        "reservation": "",
    }


def _default_partition(snapshot: Snapshot | None) -> Partition | None:
    if not snapshot or not snapshot.partitions:
        return None
    return snapshot.partition() or snapshot.partitions[0]


def parse(raw: dict[str, Any]) -> tuple[Options | None, Problems]:
    """The choice in `raw`, or what is wrong with which field."""
    try:
        return Options.model_validate(raw), {}
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        known = [problem for problem in wrong if problem["type"] != "extra_forbidden"]
        found = {_field(problem): _message(problem) for problem in known}
        if strange := [repr(str(p["loc"][0])[:40]) for p in wrong if p not in known]:
            names = ", ".join(Options.model_fields)
            found[""] = f"unknown option {', '.join(strange[:10])}; known are {names}"
        return None, found


def _field(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    return name if name in Options.model_fields else ""


def _message(problem: Any) -> str:
    if problem["type"] == "string_pattern_mismatch":
        return "this is not a name of one of the choices"
    said = str(problem["msg"]).removeprefix("Value error, ")
    return said[0].lower() + said[1:]


def problems(
    options: Options,
    snapshot: Snapshot,
    catalogue: Catalogue,
    projects: Collection[str] = (),
    max_nodes: int | None = None,
) -> Problems:
    """What of the choice this cluster cannot give to this user; empty when it can."""
    found = {**_image_problems(options, catalogue), **limits(options, snapshot, max_nodes)}
    if options.project and options.project not in projects:
        yours = ", ".join(projects) or "none"
        found["project"] = f"you have no project folder {options.project}; yours: {yours}"
    return found


def limits(options: Options, snapshot: Snapshot, max_nodes: int | None = None) -> Problems:
    """What the partition and its nodes could not give even if they were empty; not how long."""
    partition = snapshot.partition(options.partition)
    if partition is None or partition.hidden:
        names = ", ".join(p.name for p in snapshot.partitions if not p.hidden)
        return {"partition": f"there is no partition {options.partition}; there are {names}"}
    found: Problems = {}
    if not partition.up:
        found["partition"] = f"{partition.name} takes no jobs now (it is {partition.state.lower()})"
    return {
        **found,
        **_node_problems(options, partition, max_nodes),
        **_size_problems(options, snapshot),
    }


def _node_problems(options: Options, partition: Partition, max_nodes: int | None) -> Problems:
    """More nodes than the site or the partition gives to one session."""
    for limit, who in ((max_nodes, "this site"), (partition.max_nodes, partition.name)):
        if limit is not None and options.nodes > limit:
            return {"nodes": f"{who} allows at most {limit} nodes"}
    return {}


def _image_problems(options: Options, catalogue: Catalogue) -> Problems:
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


def _size_problems(options: Options, snapshot: Snapshot) -> Problems:
    """No single node, even empty, has this much."""
    found: Problems = {}
    where = options.partition
    nodes = snapshot.nodes_in(where)
    if options.gpu_type:
        types = sorted(kind for kind in snapshot.gpus_total(where) if kind)
        if options.gpu_type not in types:
            found["gpu_type"] = f"{where} has {', '.join(types) or 'no GPUs'}"
            return found
    per_node = {
        node.name: node.gpus.get(options.gpu_type, 0)
        if options.gpu_type
        else sum(node.gpus.values())
        for node in nodes
    }
    most_gpus = max(per_node.values(), default=0)
    if options.gpus > most_gpus:
        kind = f" of type {options.gpu_type}" if options.gpu_type else ""
        found["gpus"] = (
            f"a node of {where} has at most {most_gpus} GPUs{kind}"
            if most_gpus
            else f"{where} has no GPUs"
        )
        return found
    fitting = [node for node in nodes if per_node[node.name] >= options.gpus]
    most_cpus = max((node.cpus for node in fitting), default=0)
    most_bytes = max((node.memory_bytes for node in fitting), default=0)
    if options.cpus > most_cpus:
        found["cpus"] = f"a node of {where} has at most {most_cpus} cores"
    if options.memory_gb * GIB > most_bytes:
        found["memory_gb"] = f"a node of {where} has at most {format_bytes(most_bytes)}"
    enough = [
        node
        for node in fitting
        if node.cpus >= options.cpus and node.memory_bytes >= options.memory_gb * GIB
    ]
    if not found and options.nodes > len(enough):
        found["nodes"] = f"{where} has {len(enough)} nodes with this much on each"
    return found


def summary(found: Problems) -> str:
    """All problems in one line, for REST clients and the log."""
    return "; ".join(
        f"{LABELS.get(name, name)}: {text}" if name else text for name, text in found.items()
    )


def listed(found: Problems) -> list[dict[str, str]]:
    """The problems one by one, for REST clients that are programs."""
    return [{"field": name, "message": text} for name, text in found.items()]
