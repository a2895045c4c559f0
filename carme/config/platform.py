"""Sections that sessions go by: the cluster, Slurm, the view, the hub, images, sessions."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, model_validator

from carme.config.section import Port, Section, UnixName
from carme.requests.resource_request import check_partial


class ClusterSettings(Section):
    """Who we are, as people and Slurm see it."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "carme"
    """Slurm's ClusterName; also the `cluster` label in Prometheus."""
    title: str = "Carme"
    """What the pages call this site."""


class SlurmSettings(Section):
    """How Slurm is read."""

    backend: Literal["auto", "cli", "rest", "pyslurm"] = "auto"
    """`auto` takes pyslurm when it is there and matches the running release, else the commands."""
    conf: Path | None = None
    """The slurm.conf to use (SLURM_CONF); unset means Slurm's own default."""
    bin: Path | None = None
    """The folder of sbatch, squeue and the others; unset means PATH."""
    rest_socket: Path | None = None
    """slurmrestd's unix socket, for the backend `rest`."""
    timeout_seconds: Annotated[float, Field(gt=0, le=120)] = 10
    """How long one call may take; Slurm's own MessageTimeout is 10 s."""
    retry_seconds: Annotated[float, Field(ge=0, le=600)] = 20
    """How long a read is tried again while the controller is away, before it is an error."""


class ViewSettings(Section):
    """`carme-view`, the one process that polls Slurm for everybody."""

    socket: Path = Path("/run/carme/view.sock")
    """Where it listens. Everybody may connect; what is answered depends on who asks."""
    poll_seconds: Annotated[float, Field(ge=5, le=600)] = 30
    """Between polls while nothing happens: a poll is five calls, so this makes ten a minute."""
    rights_seconds: Annotated[float, Field(ge=30, le=86400)] = 300
    """How long one reading of accounts and QoS serves all users; a new user is looked up sooner."""
    readers: tuple[UnixName, ...] = ("carme",)
    """Unix users who may see every job (the hub, the service); others see their own."""
    extend_max_hours: Annotated[float, Field(ge=0, le=24 * 366)] = 24
    """The longest that a job may become through "more time", in all; 0 turns that off."""


class HubSettings(Section):
    """JupyterHub: who may log in, and where it listens."""

    user: UnixName = "carme"
    """The Unix user that the hub runs as; never root. Member of group shadow for PAM."""
    users_group: UnixName = "carme-users"
    """Members may log in and start sessions."""
    admins_group: UnixName = "carme-admins"
    """Members are JupyterHub admins."""
    url: str = "http://127.0.0.1:8000"
    """What people open in the browser; the proxy binds to it."""
    api_port: Port = 8081
    """Where the hub itself listens, for the proxy and the sessions."""
    api_address: str = "127.0.0.1"
    """The address of the hub as compute nodes reach it."""
    proxy_port: Port = 8001
    """The proxy's control port, on loopback."""
    database: str = "sqlite:////var/lib/carme/hub.sqlite"
    """Any SQLAlchemy URL; PostgreSQL for larger sites."""
    make_homes: bool = True
    """Make a missing home folder at the first login; off where automounts or LDAP tools do it."""

    @property
    def base_url(self) -> str:
        """The path of `url`, which hub and services live below; `/` without one."""
        return f"{urlsplit(self.url).path.rstrip('/')}/"


class ImageSettings(Section):
    """Where published container images lie."""

    folder: Path = Path("/var/lib/carme/images")
    """Must be readable on every node under the same path; holds index.json and the SIF files."""
    apptainer: Path | None = None
    """The apptainer (or singularity) program by absolute path; unset means PATH."""
    debian_mirror: str | None = None
    """Where builds get Debian from; unset means the mirror in the machine's own apt sources."""
    recipes: tuple[Path, ...] = ()
    """Folders with recipes of the site; one with the name of a recipe of Carme's replaces it."""
    own_images: bool = True
    """Whether users may start SIF files of their own; as Slurm jobs they could do so anyway."""
    signing_key: Path | None = None
    """Private key (PEM) that published images are signed with; readable by the publisher only."""
    verify_key: Path | None = None
    """Public key (PEM); when set, only images that it vouches for are offered or accepted."""
    node_cache: Path | None = None
    """A folder on each node's own disk that `carme images cache` fills; sessions start from it."""


class Preset(Section):
    """A button that fills fields of the form: any field of a resource request may stand here."""

    model_config = ConfigDict(extra="allow")

    title: Annotated[str, Field(min_length=1, max_length=40)]
    description: str = ""
    whole_node: bool = False
    """All GPUs, cores and memory of the largest node of the partition."""

    @model_validator(mode="after")
    def _check_fields(self) -> "Preset":
        check_partial(self.model_extra or {})
        return self

    @property
    def values(self) -> dict[str, Any]:
        """What it fills in: field to value."""
        whole = {"whole_node": True} if self.whole_node else {}
        return {**whole, **(self.model_extra or {})}


class SessionSettings(Section):
    """What a session asks for unless the user says otherwise, and how long things may take."""

    default_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 2
    default_cpus: Annotated[int, Field(ge=1)] = 2
    default_memory_gb: Annotated[int, Field(ge=1)] = 4
    presets: tuple[Preset, ...] = tuple(
        Preset.model_validate(preset)
        for preset in (
            {
                "title": "Try something",
                "description": "no GPU, one hour",
                "gpus": 0,
                "cpus": 1,
                "memory_gb": 2,
                "hours": 1,
            },
            {
                "title": "One GPU",
                "description": "a GPU for two hours",
                "gpus": 1,
                "cpus": 2,
                "memory_gb": 4,
                "hours": 2,
            },
            {
                "title": "Whole node",
                "description": "all of a node",
                "whole_node": True,
                "hours": 2,
            },
        )
    )
    """Buttons above the form."""
    gpu_flag: Literal["", "nv", "rocm"] = "nv"
    """How the container sees GPUs; empty where they are virtual."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        default_factory=dict
    )
    """More variables for the container."""
    binds: tuple[Annotated[str, Field(pattern=r"^/[^,:\s]*(:/[^,:\s]*){0,1}(:r[ow])?$")], ...] = ()
    """More folders for the container, as Apptainer writes them: /data, /data:/data:ro."""
    projects: Path | None = None
    """Holds a folder per Unix group, owned by the group: members can work in it."""
    named_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How many sessions a user may have beside the first one."""
    idle_hours: Annotated[float, Field(ge=0, le=24 * 30)] = 0
    """A session whose kernels and terminals did nothing for this long ends; 0 turns that off."""
    max_nodes: Annotated[int, Field(ge=1, le=10_000)] = 16
    """The most nodes of one session; 1 takes the choice away. The partition's limit holds too."""
    warn_minutes: Annotated[float, Field(ge=1, le=1440)] = 10
    """So long before the end of its time JupyterLab warns."""
    stop_seconds: Annotated[float, Field(ge=0, le=300)] = 10
    """How long a server that is told to stop may take before its job is cancelled."""
    keep_days: Annotated[float, Field(ge=1, le=3650)] = 30
    """Folders of past sessions in ~/.carme/sessions go when nothing in them changed for so long."""
    gpu_idle_hours: Annotated[float, Field(ge=0, le=24 * 30)] = 0
    """A session whose GPUs and kernels did nothing for this long is warned, and then ended; one
    whose kernels work while its GPUs do not is only told. 0 turns that off."""
    gpu_idle_notice_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15
    """From that warning to the end."""
    start_seconds: Annotated[int, Field(ge=10, le=3600)] = 180
    """From the job's start until the server answers; waiting in the queue does not count."""
    wait_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 72
    """A session that waits longer than this in the queue is cancelled."""
