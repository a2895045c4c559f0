"""The services of the one-machine cluster: how each starts and how its health is checked."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin

from carme.config.services import LOOPBACK, Service
from carme.errors import ConfigError, MissingError
from carme.local import vgpu
from carme.local.layout import Layout, Secrets
from carme.slurm import daemon_checks
from carme.slurm.command_runner import clean_environment
from carme.system import health_checks
from carme.system.programs import STANDARD_PATH, run
from carme.templates import PROMETHEUS_RULES

HealthCheck = Callable[[], str]
"""Returns a short description of a healthy service; raises CarmeError for an unhealthy one."""


@dataclass(frozen=True)
class ServiceCommand:
    """How supervisor starts a service."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    reads: tuple[Path, ...] = ()
    """Configuration files: the service is restarted when one of them changed."""


@dataclass(frozen=True)
class SupervisedService:
    """One process under supervision."""

    service: Service
    address: str
    """Its address, or the path of its socket or file."""
    command: ServiceCommand
    health_check: HealthCheck

    @property
    def name(self) -> str:
        return self.service.unit


def program(name: str) -> str:
    """The absolute path of a program of this environment or of the system."""
    own = Path(sys.prefix) / "bin" / name
    if own.exists():
        return str(own)
    path = shutil.which(name, path=STANDARD_PATH)
    if not path:
        raise MissingError(f"the program {name} is not installed")
    return path


def supervised_services(layout: Layout, secrets: Secrets, proxy: Path) -> list[SupervisedService]:
    """Every service, in the order in which they start. `proxy` is the proxy's program."""
    return [
        SupervisedService(
            service,
            _address(layout, service),
            _command(layout, secrets, proxy, service),
            _health_check(layout, secrets, service),
        )
        for service in layout.services()
    ]


def build_id() -> str:
    """A hash of the installed code: `carme up` restarts services that run older code."""
    record = distribution("carme").read_text("RECORD") or ""
    return hashlib.sha256(record.encode()).hexdigest()[:12]


def _rest_socket(layout: Layout) -> Path:
    return layout.config.slurm.rest_socket or layout.rest_socket


def _address(layout: Layout, service: Service) -> str:
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
    slurm = clean_environment(config.slurm)
    checks: dict[str, HealthCheck] = {
        "virtual GPUs": lambda: run(
            vgpu.health_command(layout.gpu_allocations), timeout_seconds=10
        ).strip(),
        "munge": lambda: daemon_checks.munge(layout.munge_socket),
        "mariadb": lambda: daemon_checks.mariadb(layout.mariadb_socket),
        "slurmdbd": lambda: daemon_checks.slurmdbd(config.cluster.name, slurm),
        "slurmctld": lambda: "; ".join(("answers", *daemon_checks.slurmctld(slurm))),
        "slurmd": lambda: daemon_checks.slurmd(service.node, slurm),
        "slurmrestd": lambda: daemon_checks.slurmrestd(_rest_socket(layout)),
        "view": lambda: health_checks.unix_http_ok(config.view.socket, "/healthz"),
        "targets": lambda: health_checks.nonempty(config.prometheus.targets),
    }
    if service.health in checks:
        return checks[service.health]
    logins = {
        "carme-exporter": secrets.exporter_login,
        "prometheus": secrets.prometheus_login,
        "alertmanager": secrets.alertmanager_login,
    }
    address = _address(layout, service)
    base = address if "://" in address else f"http://{address}"
    url = urljoin(base, service.health)  # both may have the path of the hub
    return lambda: health_checks.http_ok(url, logins.get(service.program))


def _command(layout: Layout, secrets: Secrets, proxy: Path, service: Service) -> ServiceCommand:
    """The command of one service."""
    config, etc = layout.config, layout.etc
    port = str(service.ports[0]) if service.ports else ""
    reads_config = (layout.carme_toml,)
    slurm = {"SLURM_CONF": str(layout.slurm_conf)}
    carme = {"CARME_CONFIG": str(layout.carme_toml), "CARME_BUILD": build_id()}
    slurm_files = (layout.slurm_conf, etc / "slurm/gres.conf", etc / "slurm/cgroup.conf")
    prometheus = etc / "prometheus"
    hub_url = f"http://{LOOPBACK}:{config.hub.api_port}"
    match service.entry.process:
        case "vgpu":
            argv = vgpu.daemon_command(layout.vgpu_state, layout.gpu_allocations, layout.carme_toml)
            return ServiceCommand(argv, {"CARME_BUILD": build_id()}, reads=reads_config)
        case "munged":
            argv = [program("munged"), "--foreground", "--force"]
            argv += ["--socket", str(layout.munge_socket)]
            argv += ["--key-file", str(etc / "munge/munge.key")]
            argv += ["--pid-file", str(layout.run / "munge/munged.pid")]
            argv += ["--seed-file", str(layout.state / "munge/munged.seed")]
            return ServiceCommand([*argv, "--log-file", str(layout.log / "munge/munged.log")])
        case "mariadbd":
            argv = [program("mariadbd"), "--no-defaults", f"--datadir={layout.state}/mariadb"]
            argv += [f"--socket={layout.mariadb_socket}", f"--port={port}"]
            argv += [f"--bind-address={LOOPBACK}", "--skip-name-resolve"]
            argv += [f"--pid-file={layout.run}/mariadb/mariadbd.pid"]
            argv += ["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M"]
            return ServiceCommand([*argv, "--innodb-lock-wait-timeout=900", "--skip-log-bin"])
        case "slurmdbd":
            slurmdbd_conf = etc / "slurm/slurmdbd.conf"
            return ServiceCommand([program("slurmdbd"), "-D"], slurm, reads=(slurmdbd_conf,))
        case "slurmctld":
            return ServiceCommand([program("slurmctld"), "-D"], slurm, reads=slurm_files)
        case "slurmd-{node}":
            argv = [program("slurmd"), "-D", "-N", service.node]
            return ServiceCommand(argv, slurm, reads=slurm_files)
        case "slurmrestd":
            argv = [program("slurmrestd"), "-a", "rest_auth/local", f"unix:{_rest_socket(layout)}"]
            return ServiceCommand(argv, slurm, reads=(layout.slurm_conf,))
        case "view":
            return ServiceCommand([program("carme-view")], {**slurm, **carme}, reads=reads_config)
        case "proxy":
            identity = files("carme.templates") / "session_identity.js"
            argv = [program("node"), "--require", str(identity), str(proxy)]
            argv += ["--ip", LOOPBACK, "--port", port]
            argv += ["--api-ip", LOOPBACK, "--api-port", str(service.ports[1])]
            error_url = f"{hub_url}{config.hub.base_url}hub/error"
            argv += ["--default-target", hub_url, "--error-target", error_url]
            if config.hub.session_host_or_default:
                argv.append("--host-routing")
            environment = {
                "CONFIGPROXY_AUTH_TOKEN": secrets.proxy_token,
                "CARME_SESSION_AUTHORITY": str(layout.session_authority),
            }
            return ServiceCommand(argv, environment)
        case "hub":
            hub_config = etc / "jupyterhub_config.py"
            environment = {
                "CONFIGPROXY_AUTH_TOKEN": secrets.proxy_token,
                "CARME_SESSION_AUTHORITY": str(layout.session_authority),
                **carme,
                "CARME_PROMETHEUS_TOKEN": secrets.hub_metrics_token,
                "CARME_SERVICE_TOKEN": secrets.service_token,
                "HOME": str(layout.hub_dir),
                # The hub finds sudo and node on PATH; that of `carme up` may lack them.
                "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            }
            argv, reads = (
                [program("jupyterhub"), "-f", str(hub_config)],
                (*reads_config, hub_config),
            )
            return ServiceCommand(argv, environment, str(layout.hub_dir), reads)
        case "exporter-{node}" | "exporter-controller":
            mode = ["--node", service.node] if service.node else ["--mode", "controller"]
            nodes = {node.name: node for node in config.local.nodes}
            library = {}
            if service.node and nodes[service.node].gpus and layout.virtual:
                library = vgpu.environment(layout.vgpu_library, layout.vgpu_state, service.node)
            web_config = config.exporter.web_config or etc / "exporter/web.yml"
            argv = [program("carme-exporter"), *mode, "--port", port]
            reads = (layout.carme_toml, web_config)
            return ServiceCommand(argv, {**slurm, **carme, **library}, reads=reads)
        case "discovery":
            return ServiceCommand(
                [program("carme-discovery"), "--local"], carme, reads=reads_config
            )
        case "prometheus":
            settings = config.prometheus
            argv = [program("prometheus"), f"--config.file={prometheus}/prometheus.yml"]
            argv += [f"--web.config.file={prometheus}/web.yml"]
            argv += [f"--web.listen-address={LOOPBACK}:{port}"]
            argv += [f"--storage.tsdb.path={layout.state}/prometheus"]
            argv += [f"--storage.tsdb.retention.time={settings.retention_days}d"]
            if settings.retention_gb:
                argv += [f"--storage.tsdb.retention.size={settings.retention_gb}GB"]
            names = ("prometheus.yml", "web.yml", *(f"rules/{name}" for name in PROMETHEUS_RULES))
            return ServiceCommand(argv, reads=tuple(prometheus / name for name in names))
        case "alertmanager":
            argv = [program("prometheus-alertmanager")]
            argv += [f"--config.file={prometheus}/alertmanager.yml"]
            argv += [f"--web.config.file={prometheus}/alertmanager-web.yml"]
            argv += [f"--web.listen-address={LOOPBACK}:{port}", "--cluster.listen-address="]
            argv += [f"--storage.path={layout.state}/alertmanager"]
            names = ("alertmanager.yml", "alertmanager-web.yml")
            return ServiceCommand(argv, reads=tuple(prometheus / name for name in names))
        case "service":
            environment = {
                **carme,
                "CARME_PROMETHEUS_TOKEN": secrets.hub_metrics_token,
                "JUPYTERHUB_API_TOKEN": secrets.service_token,
                "HOME": str(layout.service_dir),
            }
            argv = [program("carme-service")]
            return ServiceCommand(argv, environment, str(layout.service_dir), reads_config)
    raise ConfigError(f"no command for the service {service.name}")
