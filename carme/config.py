"""`carme.toml` as one frozen tree: every setting, its default and the reason for it."""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from carme.errors import ConfigError

DEFAULT_PATH = Path("/etc/carme/carme.toml")
Port = Annotated[int, Field(ge=1, le=65535)]
UnixName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
NodeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Section(BaseModel):
    """A table of carme.toml: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Cluster(Section):
    """Who we are, as people and Slurm see it."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "carme"
    """Slurm's ClusterName; also the `cluster` label in Prometheus."""
    title: str = "Carme"
    """What the pages call this site."""


class Slurm(Section):
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


class View(Section):
    """`carme-view`, the one process that polls Slurm for everybody."""

    socket: Path = Path("/run/carme/view.sock")
    """Where it listens. Everybody may connect; what is answered depends on who asks."""
    poll_seconds: Annotated[float, Field(ge=5, le=600)] = 30
    """Between polls while nothing happens: a poll is five calls, so this makes ten a minute."""
    readers: tuple[UnixName, ...] = ("carme",)
    """Unix users who may see every job (the hub, the service); others see their own."""
    extend_max_hours: Annotated[float, Field(ge=0, le=24 * 366)] = 24
    """The longest that a job may become through "more time", in all; 0 turns that off."""


class Hub(Section):
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


class Images(Section):
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
    """A choice that fills the form with one click; what it leaves out stays as it is."""

    title: Annotated[str, Field(min_length=1, max_length=40)]
    description: str = ""
    partition: str | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    cpus: Annotated[int, Field(ge=1)] | None = None
    memory_gb: Annotated[int, Field(ge=1)] | None = None
    hours: Annotated[float, Field(gt=0)] | None = None
    whole_node: bool = False
    """All GPUs, cores and memory of the largest node of the partition."""


class Session(Section):
    """What a session asks for unless the user says otherwise, and how long things may take."""

    default_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 2
    default_cpus: Annotated[int, Field(ge=1)] = 2
    default_memory_gb: Annotated[int, Field(ge=1)] = 4
    presets: tuple[Preset, ...] = (
        Preset(
            title="Try something",
            description="no GPU, one hour",
            gpus=0,
            cpus=1,
            memory_gb=2,
            hours=1,
        ),
        Preset(
            title="One GPU", description="a GPU for two hours", gpus=1, cpus=2, memory_gb=4, hours=2
        ),
        Preset(title="Whole node", description="all of a node", whole_node=True, hours=2),
    )
    """Buttons above the form."""
    gpu_flag: Literal["", "nv", "rocm"] = "nv"
    """How the container sees GPUs; empty where they are virtual."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """More variables for the container."""
    binds: tuple[Annotated[str, Field(pattern=r"^/[^,:\s]*(:/[^,:\s]*){0,1}(:r[ow])?$")], ...] = ()
    """More folders for the container, as Apptainer writes them: /data, /data:/data:ro."""
    projects: Path | None = None
    """Holds a folder per Unix group, owned by the group: members can work in it."""
    named_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How many sessions a user may have beside the first one."""
    idle_hours: Annotated[float, Field(ge=0, le=24 * 30)] = 0
    """A session whose kernels and terminals did nothing for this long ends; 0 turns that off."""
    gpu_idle_hours: Annotated[float, Field(ge=0, le=24 * 30)] = 0
    """A session whose GPUs and kernels did nothing for this long is warned, and then ended; one
    whose kernels work while its GPUs do not is only told. 0 turns that off."""
    gpu_idle_notice_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15
    """From that warning to the end."""
    start_seconds: Annotated[int, Field(ge=10, le=3600)] = 180
    """From the job's start until the server answers; waiting in the queue does not count."""
    wait_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 72
    """A session that waits longer than this in the queue is cancelled."""


class GpuModel(Section):
    """The GPUs of a node of the one-machine cluster."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "virtual-a100"
    """Slurm's GRES type; `virtual-` in front says that nothing computes here."""
    count: Annotated[int, Field(ge=0, le=16)] = 4


class LocalNode(Section):
    """A node of the one-machine cluster: one slurmd of its own."""

    name: NodeName
    cpus: Annotated[int, Field(ge=1, le=1024)] = 8
    """May be more than the machine has: Slurm then schedules what is declared."""
    memory_mb: Annotated[int, Field(ge=256)] = 8000
    gpus: GpuModel | None = None


class LocalPartition(Section):
    """A partition of the one-machine cluster."""

    name: NodeName
    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1)]
    max_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 8
    default: bool = False


class LocalPorts(Section):
    """Loopback ports of the one-machine cluster, away from the parts' usual ones on purpose."""

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


class Local(Section):
    """The whole cluster on one machine (`carme up`); not used elsewhere."""

    dir: Path = Path("/var/lib/carme-local")
    """Everything it writes lies below this folder."""
    view_user: UnixName = "carme-view"
    """Runs carme-view and slurmrestd; a Slurm operator, so that it sees all jobs."""
    exporter_user: UnixName = "carme-exporter"
    """Runs the exporters; its group may read which job holds which GPU."""
    first_job_id: Annotated[int, Field(ge=1, le=60_000_000)] = 1
    """Two clusters on a machine share the jobs' cgroups: give them different numbers."""
    users: tuple[UnixName, ...] = ("alice", "bob")
    """Made with random passwords; gone after `down --purge`."""
    admins: tuple[UnixName, ...] = ("ada",)
    """Made likewise, and JupyterHub admins."""
    ports: LocalPorts = LocalPorts()
    nodes: Annotated[tuple[LocalNode, ...], Field(min_length=1)] = (
        LocalNode(name="gpu01", gpus=GpuModel(type="virtual-a100", count=4)),
        LocalNode(name="gpu02", gpus=GpuModel(type="virtual-t4", count=4)),
        LocalNode(name="cpu01"),
    )
    partitions: Annotated[tuple[LocalPartition, ...], Field(min_length=1)] = (
        LocalPartition(name="gpu", nodes=("gpu01", "gpu02"), max_hours=8, default=True),
        LocalPartition(name="cpu", nodes=("cpu01",), max_hours=24),
    )


class Redfish(Section):
    """The node's management controller, asked for the power of the whole node."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """The Power or EnvironmentMetrics resource, with the full path."""
    user: str = ""
    password_file: Path | None = None
    """Holds nothing but the password; readable by the exporter alone."""
    ca_file: Path | None = None


class Exporter(Section):
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
    """A job's series end so long after the job."""
    profiles: tuple[Literal["dcgm", "nvidia-gpu", "cgroup", "slurm-exporter"], ...] = ()
    """Further names for the same values, for dashboards made for other exporters."""
    unrecorded_jobs: bool = True
    """Also count jobs that have a cgroup and no record of the prolog; off where clusters share
    a machine, and so the cgroups."""
    readers: tuple[UnixName, ...] = ()
    """Unix users besides root who see every job in `carme top`; others see their own."""
    bursts: Literal["asked", "always", "never"] = "asked"
    """Profiles at 20 Hz for jobs submitted with --comment=carme-profile, for all, or for none."""
    ipmi: bool = False
    """Ask IPMI DCMI for node power; needs ipmitool and the right to use it."""
    redfish: Redfish | None = None
    emissions_grams_per_kwh: Annotated[float, Field(ge=0)] | None = None
    """CO2 equivalent of the site's electricity; unset: no emissions are exported."""
    price_per_kwh: Annotated[float, Field(ge=0)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "EUR"
    factors_file: Path | None = None
    """JSON kept current by another program (grams_per_kwh, price_per_kwh); wins over the above."""


class Prometheus(Section):
    """Where Prometheus answers, how often it reads the exporters, how long it keeps the series."""

    url: Annotated[str, Field(pattern=r"^https?://")] = "http://127.0.0.1:9090"
    """Where it answers."""
    login_file: Path | None = Path("/etc/carme/prometheus-login")
    """Holds `user:password`; for carme-view, which answers about jobs, and nobody else to read."""
    scrape_seconds: Annotated[float, Field(ge=1, le=60)] = 15
    """No more than twice `exporter.interval_seconds`: a new user's first figures would be lost."""
    evaluation_seconds: Annotated[float, Field(ge=1, le=60)] = 15
    """Between evaluations of recording and alert rules."""
    retention_days: Annotated[int, Field(ge=1, le=3660)] = 90
    """What is older goes; how much disk that takes is in how-to/monitoring."""
    retention_gb: Annotated[int, Field(ge=1)] | None = None
    """Beyond this much the oldest goes earlier; unset: no limit."""
    targets: Path = Path("/var/lib/carme-discovery/nodes.json")
    """Where `carme-discovery` writes the nodes that Slurm has, for Prometheus to read."""
    runbooks_url: Annotated[str, Field(pattern=r"^(https?://[^\s\"']+)?$")] = ""
    """Where the site publishes docs/runbooks; alerts then link there."""


class Alerts(Section):
    """Who hears of alerts. With nobody named they only show in Alertmanager and Grafana."""

    email_to: str = ""
    """Severities critical and warning by mail; several addresses with commas."""
    email_from: str = ""
    smtp_host: Annotated[str, Field(pattern=r"^([^\s:]+:\d+)?$")] = ""
    """HOST:PORT of the mail server."""
    webhook_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Gets every alert as JSON: a chat's gateway, an on-call service."""

    @model_validator(mode="after")
    def _whole(self) -> "Alerts":
        if self.email_to and not (self.email_from and self.smtp_host):
            raise ValueError("email_to needs email_from and smtp_host")
        return self


class Config(Section):
    """The whole file."""

    cluster: Cluster = Cluster()
    slurm: Slurm = Slurm()
    view: View = View()
    hub: Hub = Hub()
    images: Images = Images()
    session: Session = Session()
    exporter: Exporter = Exporter()
    prometheus: Prometheus = Prometheus()
    alerts: Alerts = Alerts()
    local: Local = Local()

    @model_validator(mode="after")
    def _scraped_in_time(self) -> "Config":
        most = 2 * self.exporter.interval_seconds
        if self.prometheus.scrape_seconds > most:
            raise ValueError(
                f"prometheus.scrape_seconds must be at most twice exporter.interval_seconds: {most}"
            )
        return self


def config_path() -> Path:
    """The file that CARME_CONFIG names, else the machine's, else the one-machine cluster's."""
    named = os.environ.get("CARME_CONFIG")
    if named:
        return Path(named)
    local = Local().dir / "etc/carme.toml"
    return local if local.exists() and not DEFAULT_PATH.exists() else DEFAULT_PATH


def load(path: Path | None = None) -> Config:
    """The configuration in `path`; without one, the machine's, or all defaults if it has none."""
    if path is None:
        path = config_path()
        if not path.exists() and "CARME_CONFIG" not in os.environ:
            return Config()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "check the path or CARME_CONFIG") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return parse(data, str(path))


def parse(data: dict[str, Any], source: str) -> Config:
    """The configuration in `data`; errors name source, key, problem and what is allowed."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [f"{source}: {_explain(problem)}" for problem in error.errors()]
        raise ConfigError("\n".join(lines), "carme config show lists every key") from None


def _explain(problem: Any) -> str:
    parents = problem["loc"][:-1]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{where}: no such key; allowed here: {', '.join(_keys_at(list(parents)))}"
    said = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], dict):  # about several keys: it names them itself
        return f"{where}: {said}" if where else said
    return f"{where}: {said[0].lower()}{said[1:]}, not {problem['input']!r}"


def _keys_at(path: list[Any]) -> list[str]:
    """The keys allowed in the table at `path`, list positions skipped."""
    model: Any = Config
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := _model_in(inner):
            return found
    return None
