"""The sections of carme.toml: every setting, its default and the reason for it."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme.config.database_url import DatabaseUrl
from carme.requests.resource_request import check_partial

Port = Annotated[int, Field(ge=1, le=65535)]
UnixName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
SESSION_HOST = r"^((\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$"
NodeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Section(BaseModel):
    """A table of carme.toml: unknown keys are errors, values do not change after reading."""

    # Not `use_attribute_docstrings`: it reads this file's source, which takes longer than all the
    # rest, and the helper starts anew for every session. See `carme.config.commands`.
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClusterSettings(Section):
    """The name of the cluster, for people and for Slurm."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "carme"
    """Slurm's ClusterName; also the `cluster` label in Prometheus."""
    title: str = "Carme"
    """What the pages call this site."""


class SlurmSettings(Section):
    """How Slurm is read."""

    backend: Literal["auto", "cli", "rest", "pyslurm"] = "auto"
    """`auto` uses pyslurm if it is installed and matches Slurm's release, else the commands."""
    conf: Path | None = None
    """The slurm.conf to use (SLURM_CONF); unset means Slurm's own default."""
    bin: Path | None = None
    """The folder of sbatch, squeue and the others; unset means PATH."""
    rest_socket: Path | None = None
    """slurmrestd's unix socket, for the backend `rest`."""
    timeout_seconds: Annotated[float, Field(gt=0, le=120)] = 10
    """How long one call may take; Slurm's own MessageTimeout is 10 s."""
    retry_seconds: Annotated[float, Field(ge=0, le=600)] = 20
    """How long reads are repeated while the controller is away; then they fail."""


class ViewSettings(Section):
    """`carme-view`, the one process that polls Slurm."""

    socket: Path = Path("/run/carme/view.sock")
    """Where it listens. Every user may connect, and gets answers by their rights."""
    poll_seconds: Annotated[float, Field(ge=5, le=600)] = 30
    """Between polls while nothing happens: a poll is five calls, so this makes ten a minute."""
    rights_seconds: Annotated[float, Field(ge=30, le=86400)] = 300
    """How long one reading of accounts and QoS serves all users; a new user is looked up sooner."""
    readers: tuple[UnixName, ...] = ("carme",)
    """Unix users who may see every job (the hub, the service); others see their own."""
    extend_max_hours: Annotated[float, Field(ge=0, le=24 * 366)] = 24
    """The longest time limit that an extension may give a job; 0 turns extensions off."""
    requests_per_minute: Annotated[int, Field(ge=10)] = 600
    """Of one user at the socket, half of them at once; readers have no such limit."""
    expected_starts_per_minute: Annotated[int, Field(ge=1, le=600)] = 12
    """How often Slurm is asked with `sbatch --test-only`, which makes it plan."""
    expected_starts_per_user: Annotated[int, Field(ge=1, le=600)] = 4
    """How often of these for one user."""


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
    session_host: Annotated[str, Field(pattern=SESSION_HOST)] | None = None
    """Where browsers find sessions, apart from the hub: `*.hub.example.org` is a host name for each
    user, `sessions.example.org` one for all users. Empty: at the hub itself, where a page of one
    user can act for another. Unset: `*.localhost` for a hub on this machine, else empty."""
    api_port: Port = 8081
    """Where the hub itself listens, for the proxy and the sessions."""
    api_address: str = "127.0.0.1"
    """The address of the hub as compute nodes reach it."""
    proxy_port: Port = 8001
    """The proxy's control port, on loopback."""
    database: DatabaseUrl = "sqlite:////var/lib/carme/hub.sqlite"
    """Any SQLAlchemy URL without a password; PostgreSQL for larger sites."""
    requests_per_minute: Annotated[int, Field(ge=60)] = 1800
    """Of one user, half of them at once; beyond it the answer is 429."""
    requests_at_once: Annotated[int, Field(ge=4)] = 32
    """Requests of one user in progress, among them the progress bars of starting sessions."""
    helpers_per_user: Annotated[int, Field(ge=1, le=8)] = 3
    """Of the eight helpers that submit and cancel at the same time, and of the eight that check
    images; further calls of the user wait."""
    make_homes: bool = True
    """Make a missing home folder at the first login; off where automounts or LDAP tools do it."""

    @property
    def base_url(self) -> str:
        """The path of `url`, which hub and services live below; `/` without one."""
        return f"{urlsplit(self.url).path.rstrip('/')}/"

    @property
    def api_base(self) -> str:
        """Address, port and path of the hub's API, as compute nodes reach it."""
        return f"{self.api_address}:{self.api_port}{self.base_url}hub/api"

    @property
    def origin(self) -> str:
        """Scheme, host and port of `url`."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def host(self) -> str:
        """The host name of `url`."""
        return urlsplit(self.url).hostname or ""

    @property
    def session_host_or_default(self) -> str:
        """`session_host`, or what stands for it if it is unset."""
        if self.session_host is not None:
            return self.session_host
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return f"*.{self.host}"
        return "*.localhost" if self.host == "127.0.0.1" else ""

    @model_validator(mode="after")
    def _check_session_host(self) -> "HubSettings":
        name = self.session_host_or_default
        is_hub = name == self.host
        # With `*.example.org` a user called `hub` would be at hub.example.org.
        is_users = name.startswith("*.") and self.host.partition(".")[2] == name[2:]
        if is_hub or is_users:
            raise ValueError(
                f"session_host {name} includes the hub's own host name {self.host}; sessions need"
                f" other names, such as *.{self.host}"
            )
        return self


class ImageSettings(Section):
    """Where published container images lie."""

    folder: Path = Path("/var/lib/carme/images")
    """Must be readable on every node under the same path; holds index.json and the SIF files."""
    apptainer: Path | None = None
    """The apptainer (or singularity) program by absolute path; unset means PATH."""
    debian_mirror: str | None = None
    """Where builds get Debian from; unset means the mirror in the machine's own apt sources."""
    recipes: tuple[Path, ...] = ()
    """The site's folders of recipes; a recipe replaces the bundled one of the same name."""
    own_images: bool = True
    """Whether users may start SIF files of their own; as Slurm jobs they could do so anyway."""
    signing_key: Path | None = None
    """Private key (PEM) that published images are signed with; readable by the publisher only."""
    verify_key: Path | None = None
    """Public key (PEM); if set, only images signed with its private key are offered or accepted."""
    node_cache: Path | None = None
    """A folder on each node's own disk that `carme images cache` fills; sessions start from it."""


class Preset(Section):
    """A button that fills fields of the form; it may have any field of a resource request."""

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


# fmt: off
_PRESETS = tuple(Preset.model_validate(preset) for preset in (
    {"title": "Try something", "description": "no GPU, one hour",
     "gpus": 0, "cpus": 1, "memory_gb": 2, "hours": 1},
    {"title": "One GPU", "description": "a GPU for two hours",
     "gpus": 1, "cpus": 2, "memory_gb": 4, "hours": 2},
    {"title": "Whole node", "description": "all of a node", "whole_node": True, "hours": 2},
))
# fmt: on


class SessionSettings(Section):
    """Defaults of the spawn form, and how long a session's steps may take."""

    default_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 2
    default_cpus: Annotated[int, Field(ge=1)] = 2
    default_memory_gb: Annotated[int, Field(ge=1)] = 4
    presets: tuple[Preset, ...] = _PRESETS
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
    """Maximum nodes of one session; 1 hides the field. The partition's limit applies, too."""
    warn_minutes: Annotated[float, Field(ge=1, le=1440)] = 10
    """JupyterLab and the home page warn this long before the session ends."""
    stop_seconds: Annotated[float, Field(ge=0, le=300)] = 10
    """How long a session may take to end before its job is cancelled."""
    keep_days: Annotated[float, Field(ge=1, le=3650)] = 30
    """Folders in ~/.carme/sessions are removed when nothing in them changed for this long."""
    gpu_idle_hours: Annotated[float, Field(ge=0, le=24 * 30)] = 0
    """A session whose GPUs and kernels did nothing for this long is warned, and then ended; one
    whose kernels work while its GPUs are idle is only warned. 0 turns that off."""
    gpu_idle_notice_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15
    """From that warning to the end."""
    start_seconds: Annotated[int, Field(ge=10, le=3600)] = 180
    """From the job's start until the session answers; waiting in the queue does not count."""
    wait_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 72
    """A session that waits longer than this in the queue is cancelled."""


class RedfishSettings(Section):
    """The node's management controller, asked for the power of the whole node."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """The Power or EnvironmentMetrics resource, with the full path."""
    user: str = ""
    password_file: Path | None = None
    """Holds nothing but the password; readable by the exporter alone."""
    ca_file: Path | None = None


class ExporterSettings(Section):
    """`carme-exporter`: what is measured on every node and charged to jobs."""

    listen: str = "127.0.0.1"
    """The address it serves on; nodes of a cluster set the one Prometheus reaches."""
    port: Port = 9810
    web_config: Path | None = Path("/etc/carme/exporter-web.yml")
    """Users and TLS, in the form of Prometheus' exporter-toolkit; `none` only with --open."""
    run: Path = Path("/run/carme")
    """Where prolog and epilog keep their records and find the exporter's socket."""
    state: Path = Path("/var/lib/carme-exporter")
    """Counters survive a restart here."""
    interval_seconds: Annotated[float, Field(ge=1, le=300)] = 15
    """Between collections; Prometheus' usual scrape interval."""
    series_limit: Annotated[int, Field(ge=100)] = 20_000
    """Beyond this, further jobs share the series with jobid `other`."""
    keep_seconds: Annotated[float, Field(ge=0, le=86400)] = 300
    """A job's series end this long after the job."""
    profiles: tuple[Literal["dcgm", "nvidia-gpu", "cgroup", "slurm-exporter"], ...] = ()
    """Further names for the same values, for dashboards made for other exporters."""
    unrecorded_jobs: bool = True
    """Also count jobs that have a cgroup but no record of the prolog; turn this off where
    clusters share a machine, and with it the cgroups."""
    readers: tuple[UnixName, ...] = ()
    """Unix users besides root who see every job in `carme top`; others see their own."""
    bursts: Literal["asked", "always", "never"] = "asked"
    """Profiles at 20 Hz for jobs submitted with --comment=carme-profile, for all, or for none."""
    ipmi: bool = False
    """Ask IPMI DCMI for node power; needs ipmitool and the right to use it."""
    redfish: RedfishSettings | None = None
    emissions_grams_per_kwh: Annotated[float, Field(ge=0)] | None = None
    """CO2 equivalent of the site's electricity; unset: no emissions are exported."""
    price_per_kwh: Annotated[float, Field(ge=0)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "EUR"
    factors_file: Path | None = None
    """JSON that another program updates (grams_per_kwh, price_per_kwh); overrides the above."""


class ServiceSettings(Section):
    """The prediction service: a JupyterHub service with an API and pages."""

    user: UnixName = "carme-service"
    """The Unix user it runs as; may read all jobs from carme-view."""
    listen: str = "127.0.0.1"
    """The address for the hub's proxy; nothing else connects to it."""
    port: Port = 8610
    database: DatabaseUrl = "sqlite:////var/lib/carme-service/service.sqlite"
    """Any SQLAlchemy URL without a password; PostgreSQL for larger sites."""
    token_cache_seconds: Annotated[float, Field(ge=0, le=600)] = 30
    """How long the hub's answer on a token is cached; a revoked token works no longer than this."""
    requests_per_minute: Annotated[int, Field(ge=10)] = 6000
    """Of one user; beyond it the answer is 429."""
    requests_at_once: Annotated[int, Field(ge=1)] = 10
    """Requests of one user in progress; the service answers sixteen at a time."""
    tasks_per_user: Annotated[int, Field(ge=1, le=100)] = 3
    """Large suites of one user that run at the same time."""
    stored_predictions: Annotated[int, Field(ge=1)] = 1000
    """Of one user; a further one replaces the oldest."""
    stored_calibrations: Annotated[int, Field(ge=1)] = 200
    """Of one user; a further one replaces the oldest that a newer one supersedes."""
    stored_workloads: Annotated[int, Field(ge=1)] = 200
    """Of one user; a further one is refused until the user deletes one."""
    most_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 1_000_000
    most_onnx_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 64_000_000
    """Of an uploaded ONNX file; graphs without their weights are far smaller."""
    processes: Annotated[int, Field(ge=1, le=64)] = 2
    """Simulate the points of large suites, beside the process that answers."""
    points_at_once: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Suites up to this size are answered at once, larger ones as a task."""
    most_points: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    grams_co2_per_kwh: Annotated[float, Field(ge=0)] = 480
    """World average of 2023 (Ember); `exporter.emissions_grams_per_kwh` overrides it if set."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Facility energy over node energy."""
    hardware: dict[str, str] = Field(default_factory=dict)
    """Slurm's GPU type to the name in `carme hardware`, where the two names do not match."""


class PrometheusSettings(Section):
    """Where Prometheus answers, how often it reads the exporters, how long it keeps the series."""

    url: Annotated[str, Field(pattern=r"^https?://")] = "http://127.0.0.1:9090"
    """Where it answers."""
    login_file: Path | None = Path("/etc/carme/prometheus-login")
    """Holds `user:password`; only carme-view, which answers about jobs, may read it."""
    scrape_seconds: Annotated[float, Field(ge=1, le=60)] = 15
    """Divides a minute, for the steps of plots. No more than twice `exporter.interval_seconds`: a
    new user's first figures would be lost."""
    evaluation_seconds: Annotated[float, Field(ge=1, le=60)] = 30
    """Between evaluations of recording and alert rules: figures are over five minutes and more."""
    retention_days: Annotated[int, Field(ge=1, le=3660)] = 90
    """Older series are deleted; how-to/monitoring says how much disk this takes."""
    retention_gb: Annotated[int, Field(ge=1)] | None = None
    """Above this size the oldest series are deleted earlier; unset: no limit."""
    targets: Path = Path("/var/lib/carme-discovery/nodes.json")
    """Where `carme-discovery` writes the nodes that Slurm has, for Prometheus to read."""
    runbooks_url: Annotated[str, Field(pattern=r"^(https?://[^\s\"']+)?$")] = ""
    """Where the site publishes docs/runbooks; alerts then link there."""


class AlertSettings(Section):
    """Who gets alerts. Without a recipient they only show in Alertmanager and Grafana."""

    email_to: str = ""
    """Severities critical and warning by mail; several addresses with commas."""
    email_from: str = ""
    smtp_host: Annotated[str, Field(pattern=r"^([^\s:]+:\d+)?$")] = ""
    """HOST:PORT of the mail server."""
    webhook_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Gets every alert as JSON: a chat's gateway, an on-call service. Users can read it here; in
    Ansible's `alertmanager_webhook_url` they cannot."""

    @model_validator(mode="after")
    def _whole(self) -> "AlertSettings":
        if self.email_to and not (self.email_from and self.smtp_host):
            raise ValueError("email_to needs email_from and smtp_host")
        return self


class LocalGpus(Section):
    """The GPUs of a node of the one-machine cluster."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "virtual-a100"
    """Slurm's GRES type; `virtual-` in front marks GPUs that compute nothing."""
    count: Annotated[int, Field(ge=0, le=16)] = 4


class LocalNode(Section):
    """A node of the one-machine cluster: one slurmd of its own."""

    name: NodeName
    cpus: Annotated[int, Field(ge=1, le=1024)] = 8
    """May be more than the machine has: Slurm then schedules what is declared."""
    memory_mb: Annotated[int, Field(ge=256)] = 8000
    gpus: LocalGpus | None = None


class LocalPartition(Section):
    """A partition of the one-machine cluster."""

    name: NodeName
    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1)]
    max_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 8
    default: bool = False


class LocalPorts(Section):
    """Loopback ports of the one-machine cluster, away from the services' usual ones on purpose."""

    slurmctld: Port = 16817
    slurmdbd: Port = 16819
    slurmd_first: Port = 16830
    """One port a node from here on."""
    mariadb: Port = 16806
    prometheus: Port = 16890
    alertmanager: Port | None = None
    """Unset: three above Prometheus', as their usual ports are."""
    exporter_first: Port = 16850
    """One port a node from here on."""
    service: Port = 16880

    @property
    def alertmanager_or_default(self) -> int:
        return self.alertmanager or self.prometheus + 3


class LocalSettings(Section):
    """The whole cluster on one machine (`carme up`); not used elsewhere."""

    dir: Path = Path("/var/lib/carme-local")
    """Everything it writes lies below this folder."""
    view_user: UnixName = "carme-view"
    """Runs carme-view and slurmrestd; a Slurm operator, so that it sees all jobs."""
    exporter_user: UnixName = "carme-exporter"
    """Runs the exporters; its group may read which job holds which GPU."""
    service_user: UnixName = "carme-service"
    """Runs the prediction service."""
    first_job_id: Annotated[int, Field(ge=1, le=60_000_000)] = 1
    """Two clusters on a machine share the jobs' cgroups: give them different numbers."""
    users: tuple[UnixName, ...] = ("alice", "bob")
    """Created with random passwords; removed by `down --purge`."""
    admins: tuple[UnixName, ...] = ("ada",)
    """Created in the same way; JupyterHub admins."""
    ports: LocalPorts = LocalPorts()
    nodes: Annotated[tuple[LocalNode, ...], Field(min_length=1)] = (
        LocalNode(name="gpu01", gpus=LocalGpus(type="virtual-a100", count=4)),
        LocalNode(name="gpu02", gpus=LocalGpus(type="virtual-t4", count=4)),
        LocalNode(name="cpu01"),
    )
    partitions: Annotated[tuple[LocalPartition, ...], Field(min_length=1)] = (
        LocalPartition(name="gpu", nodes=("gpu01", "gpu02"), max_hours=8, default=True),
        LocalPartition(name="cpu", nodes=("cpu01",), max_hours=24),
    )
