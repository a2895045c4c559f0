"""The services of the one-machine cluster: how each starts and how its health is checked."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from carme.config.services import LOOPBACK, Service
from carme.errors import MissingError
from carme.local import vgpu
from carme.local.layout import Layout
from carme.local.secrets import Secrets
from carme.system import health_checks
from carme.system.programs import run
from carme.templates import PROMETHEUS_RULES

HealthCheck = Callable[[], str]
"""Returns a short description of a healthy service; raises CarmeError for an unhealthy one."""


@dataclass(frozen=True)
class Command:
    """How supervisor starts a service."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    reads: tuple[Path, ...] = ()
    """Configuration files: the service is restarted when one of them changed."""


@dataclass(frozen=True)
class LocalService:
    """One process under supervision."""

    service: Service
    where: str
    """Its address, or the path of its socket or file."""
    command: Command
    health_check: HealthCheck

    @property
    def name(self) -> str:
        return self.service.unit


def program(name: str) -> str:
    """The absolute path of a program that a package brought."""
    own = Path(sys.prefix) / "bin" / name
    if own.exists():
        return str(own)
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if not path:
        raise MissingError(f"the program {name} is not installed")
    return path


def local_services(layout: Layout, secrets: Secrets, proxy: Path) -> list[LocalService]:
    """Every service, in the order in which they start. `proxy` is the proxy's program."""
    commands = _Commands(layout, secrets, proxy)
    return [
        LocalService(
            service,
            _where(layout, service),
            commands.of(service),
            _health_check(layout, secrets, service),
        )
        for service in layout.services()
    ]


def build_id() -> str:
    """Changes with the installed code: `up` restarts services that run older code."""
    record = distribution("carme").read_text("RECORD") or ""
    return hashlib.sha256(record.encode()).hexdigest()[:12]


def _rest_socket(layout: Layout) -> Path:
    return layout.config.slurm.rest_socket or layout.run / "rest/slurmrestd.sock"


def _where(layout: Layout, service: Service) -> str:
    config = layout.config
    paths = {
        "vgpu": layout.vgpu_state,
        "munged": layout.munge_socket,
        "slurmrestd": _rest_socket(layout),
        "view": config.view.socket,
        "discovery": config.prometheus.targets,
    }
    if service.unit in paths:
        return str(paths[service.unit])
    if service.unit == "proxy":
        return config.hub.url
    address = config.service.listen if service.unit == "service" else service.address
    return f"{address}:{service.ports[0]}"


def _health_check(layout: Layout, secrets: Secrets, service: Service) -> HealthCheck:
    config = layout.config
    slurm = {"SLURM_CONF": str(layout.slurm_conf)}
    checks: dict[str, HealthCheck] = {
        "virtual GPUs": lambda: run(
            vgpu.health_command(layout.gpu_allocations), timeout=10
        ).strip(),
        "munge": lambda: health_checks.munge(layout.munge_socket),
        "mariadb": lambda: health_checks.mariadb(layout.mariadb_socket),
        "slurmdbd": lambda: health_checks.slurmdbd(slurm),
        "slurmctld": lambda: health_checks.slurmctld(slurm),
        "slurmd": lambda: health_checks.slurmd(service.node, slurm),
        "slurmrestd": lambda: health_checks.slurmrestd(_rest_socket(layout)),
        "view": lambda: health_checks.view(config.view.socket),
        "targets": lambda: health_checks.nonempty(config.prometheus.targets),
    }
    if service.health in checks:
        return checks[service.health]
    logins = {
        "carme-exporter": secrets.exporter_login,
        "prometheus": secrets.prometheus_login,
        "alertmanager": secrets.alertmanager_login,
    }
    where = _where(layout, service)
    base = where if "://" in where else f"http://{where}"
    return lambda: health_checks.http(base + service.health, logins.get(service.program))


class _Commands:
    """The command of each service of one cluster."""

    def __init__(self, layout: Layout, secrets: Secrets, proxy: Path) -> None:
        self._layout, self._secrets, self._proxy = layout, secrets, proxy
        self._config_file = layout.etc / "carme.toml"
        self._slurm = {"SLURM_CONF": str(layout.slurm_conf)}
        self._carme = {"CARME_CONFIG": str(self._config_file), "CARME_BUILD": build_id()}

    def of(self, service: Service) -> Command:
        make: dict[str, Callable[[Service], Command]] = {
            "vgpu": self._vgpu,
            "munged": self._munged,
            "mariadbd": self._mariadbd,
            "slurmdbd": self._slurmdbd,
            "slurmctld": self._slurmctld,
            "slurmd-{node}": self._slurmd,
            "slurmrestd": self._slurmrestd,
            "view": self._view,
            "proxy": self._proxy_command,
            "hub": self._hub,
            "exporter-{node}": self._exporter,
            "exporter-controller": self._exporter,
            "discovery": self._discovery,
            "prometheus": self._prometheus,
            "alertmanager": self._alertmanager,
            "service": self._service,
        }
        return make[service.entry.process](service)

    def _vgpu(self, _: Service) -> Command:
        state, allocations = self._layout.vgpu_state, self._layout.gpu_allocations
        return Command(
            tuple(vgpu.daemon_command(state, allocations, self._config_file)),
            {"CARME_BUILD": build_id()},
            reads=(self._config_file,),
        )

    def _munged(self, _: Service) -> Command:
        layout = self._layout
        return Command(
            (
                *(program("munged"), "--foreground", "--force"),
                *("--socket", str(layout.munge_socket)),
                *("--key-file", str(layout.etc / "munge/munge.key")),
                *("--pid-file", str(layout.run / "munge/munged.pid")),
                *("--seed-file", str(layout.state / "munge/munged.seed")),
                *("--log-file", str(layout.log / "munge/munged.log")),
            )
        )

    def _mariadbd(self, service: Service) -> Command:
        layout = self._layout
        return Command(
            (
                *(program("mariadbd"), "--no-defaults", f"--datadir={layout.state}/mariadb"),
                *(f"--socket={layout.mariadb_socket}", f"--port={service.ports[0]}"),
                *(f"--bind-address={LOOPBACK}", "--skip-name-resolve"),
                f"--pid-file={layout.run}/mariadb/mariadbd.pid",
                *("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M"),
                *("--innodb-lock-wait-timeout=900", "--skip-log-bin"),
            )
        )

    def _slurmdbd(self, _: Service) -> Command:
        reads = (self._layout.etc / "slurm/slurmdbd.conf",)
        return Command((program("slurmdbd"), "-D"), self._slurm, reads=reads)

    @property
    def _slurm_files(self) -> tuple[Path, ...]:
        folder = self._layout.etc / "slurm"
        return (self._layout.slurm_conf, folder / "gres.conf", folder / "cgroup.conf")

    def _slurmctld(self, _: Service) -> Command:
        return Command((program("slurmctld"), "-D"), self._slurm, reads=self._slurm_files)

    def _slurmd(self, service: Service) -> Command:
        argv = (program("slurmd"), "-D", "-N", service.node)
        return Command(argv, self._slurm, reads=self._slurm_files)

    def _slurmrestd(self, _: Service) -> Command:
        argv = (
            program("slurmrestd"),
            "-a",
            "rest_auth/local",
            f"unix:{_rest_socket(self._layout)}",
        )
        return Command(argv, self._slurm, reads=(self._layout.slurm_conf,))

    def _view(self, _: Service) -> Command:
        environment = {**self._slurm, **self._carme}
        return Command((program("carme-view"),), environment, reads=(self._config_file,))

    def _proxy_command(self, service: Service) -> Command:
        public_port, control_port = service.ports
        hub = f"http://{LOOPBACK}:{self._layout.config.hub.api_port}"
        return Command(
            (
                *(program("node"), str(self._proxy)),
                *("--ip", LOOPBACK, "--port", str(public_port)),
                *("--api-ip", LOOPBACK, "--api-port", str(control_port)),
                *("--default-target", hub, "--error-target", f"{hub}/hub/error"),
            ),
            {"CONFIGPROXY_AUTH_TOKEN": self._secrets.proxy_token},
        )

    def _hub(self, _: Service) -> Command:
        layout, secrets = self._layout, self._secrets
        config = layout.etc / "jupyterhub_config.py"
        return Command(
            (program("jupyterhub"), "-f", str(config)),
            {
                "CONFIGPROXY_AUTH_TOKEN": secrets.proxy_token,
                **self._carme,
                "CARME_PROMETHEUS_TOKEN": secrets.hub_metrics_token,
                "CARME_SERVICE_TOKEN": secrets.service_token,
                "HOME": str(layout.hub_dir),
                # The hub looks up sudo and node by name, whatever PATH `carme up` had.
                "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            },
            directory=str(layout.hub_dir),
            reads=(self._config_file, config),
        )

    def _exporter(self, service: Service) -> Command:
        layout = self._layout
        nodes = {node.name: node for node in layout.config.local.nodes}
        mode = ("--node", service.node) if service.node else ("--mode", "controller")
        library = {}
        if service.node and nodes[service.node].gpus and layout.virtual:
            library = vgpu.environment(layout.vgpu_library, layout.vgpu_state, service.node)
        web = layout.config.exporter.web_config or layout.etc / "exporter/web.yml"
        return Command(
            (program("carme-exporter"), *mode, "--port", str(service.ports[0])),
            {**self._slurm, **self._carme, **library},
            reads=(self._config_file, web),
        )

    def _discovery(self, _: Service) -> Command:
        argv = (program("carme-discovery"), "--local")
        return Command(argv, self._carme, reads=(self._config_file,))

    def _prometheus(self, service: Service) -> Command:
        layout, settings = self._layout, self._layout.config.prometheus
        etc, size = layout.etc / "prometheus", settings.retention_gb
        return Command(
            (
                *(program("prometheus"), f"--config.file={etc}/prometheus.yml"),
                f"--web.config.file={etc}/web.yml",
                f"--web.listen-address={LOOPBACK}:{service.ports[0]}",
                f"--storage.tsdb.path={layout.state}/prometheus",
                f"--storage.tsdb.retention.time={settings.retention_days}d",
                *((f"--storage.tsdb.retention.size={size}GB",) if size else ()),
            ),
            reads=(
                *(etc / name for name in ("prometheus.yml", "web.yml")),
                *(etc / "rules" / name for name in PROMETHEUS_RULES),
            ),
        )

    def _alertmanager(self, service: Service) -> Command:
        etc = self._layout.etc / "prometheus"
        return Command(
            (
                *(program("prometheus-alertmanager"), f"--config.file={etc}/alertmanager.yml"),
                f"--web.config.file={etc}/alertmanager-web.yml",
                f"--web.listen-address={LOOPBACK}:{service.ports[0]}",
                "--cluster.listen-address=",
                f"--storage.path={self._layout.state}/alertmanager",
            ),
            reads=(etc / "alertmanager.yml", etc / "alertmanager-web.yml"),
        )

    def _service(self, _: Service) -> Command:
        folder = str(self._layout.service_dir)
        return Command(
            (program("carme-service"),),
            {
                **self._carme,
                "CARME_PROMETHEUS_TOKEN": self._secrets.hub_metrics_token,
                "JUPYTERHUB_API_TOKEN": self._secrets.service_token,
                "HOME": folder,
            },
            directory=folder,
            reads=(self._config_file,),
        )
