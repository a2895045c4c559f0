"""The parts of the cluster as data: what each is, how it starts, and how it shows it is well."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from carme.errors import MissingError
from carme.local import health_checks, vgpu
from carme.local.layout import LOOPBACK, Layout
from carme.local.monitoring import RULES
from carme.local.secrets import Secrets
from carme.system.programs import run

Probe = Callable[[], str]
"""Returns a few words on what was seen; raises CarmeError when the part is not well."""


@dataclass(frozen=True)
class LocalService:
    """One process under supervision."""

    name: str
    what: str
    where: str
    argv: tuple[str, ...]
    user: str
    probe: Probe
    env: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    stop_signal: str = "TERM"
    reads: tuple[Path, ...] = ()
    """Configuration files: the part is restarted when one of them changed."""


def program(name: str) -> str:
    """The absolute path of a program that a package brought."""
    own = Path(sys.prefix) / "bin" / name
    if own.exists():
        return str(own)
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if not found:
        raise MissingError(f"the program {name} is not installed")
    return found


def local_services(layout: Layout, secrets: Secrets, proxy: Path) -> list[LocalService]:
    """Every part, in the order in which they start."""
    stand_ins = layout.virtual and any(node.gpus for node in layout.config.local.nodes)
    return [
        *([_vgpu(layout)] if stand_ins else []),
        *_slurm(layout),
        *_hub(layout, secrets, proxy),
        *_exporters(layout, secrets),
        *_prometheus(layout, secrets),
        _service(layout, secrets),
    ]


def build_id() -> str:
    """Changes with the installed code: parts that run older code are started again by `up`."""
    record = distribution("carme").read_text("RECORD") or ""
    return hashlib.sha256(record.encode()).hexdigest()[:12]


def _vgpu(layout: Layout) -> LocalService:
    config = layout.etc / "carme.toml"
    return LocalService(
        "vgpu",
        "virtual GPUs",
        str(layout.vgpu_state),
        tuple(vgpu.daemon_command(layout.vgpu_state, layout.holders, config)),
        "root",
        lambda: run(vgpu.health_command(layout.holders), timeout=10).strip(),
        {"CARME_BUILD": build_id()},
        reads=(config,),
    )


def _slurm(layout: Layout) -> list[LocalService]:
    config, local = layout.config, layout.config.local
    slurm = {"SLURM_CONF": str(layout.slurm_conf)}
    conf = (layout.slurm_conf, *(layout.etc / f"slurm/{n}.conf" for n in ("gres", "cgroup")))
    munge = layout.run / "munge"
    mariadb = layout.state / "mariadb"
    carme = {"CARME_CONFIG": str(layout.etc / "carme.toml")}
    rest = config.slurm.rest_socket or layout.run / "rest/slurmrestd.sock"
    return [
        LocalService(
            "munged",
            "who is who in Slurm",
            str(layout.munge_socket),
            (
                *(program("munged"), "--foreground", "--force"),
                *("--socket", str(layout.munge_socket)),
                *("--key-file", str(layout.etc / "munge/munge.key")),
                *("--pid-file", str(munge / "munged.pid")),
                *("--seed-file", str(layout.state / "munge/munged.seed")),
                *("--log-file", str(layout.log / "munge/munged.log")),
            ),
            "munge",
            lambda: health_checks.munge(layout.munge_socket),
        ),
        LocalService(
            "mariadbd",
            "accounting database",
            f"{LOOPBACK}:{local.ports.mariadb}",
            (
                *(program("mariadbd"), "--no-defaults", f"--datadir={mariadb}"),
                *(f"--socket={layout.mariadb_socket}", f"--port={local.ports.mariadb}"),
                *(f"--bind-address={LOOPBACK}", "--skip-name-resolve"),
                f"--pid-file={layout.run}/mariadb/mariadbd.pid",
                *("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M"),
                *("--innodb-lock-wait-timeout=900", "--skip-log-bin"),
            ),
            "mysql",
            lambda: health_checks.mariadb(layout.mariadb_socket),
        ),
        LocalService(
            "slurmdbd",
            "Slurm's accounting",
            f"{LOOPBACK}:{local.ports.slurmdbd}",
            (program("slurmdbd"), "-D"),
            "slurm",
            lambda: health_checks.slurmdbd(slurm),
            slurm,
            reads=(layout.etc / "slurm/slurmdbd.conf",),
        ),
        LocalService(
            "slurmctld",
            "Slurm's controller",
            f"{LOOPBACK}:{local.ports.slurmctld}",
            (program("slurmctld"), "-D"),
            "slurm",
            lambda: health_checks.slurmctld(slurm),
            slurm,
            reads=conf,
        ),
        *(
            LocalService(
                f"slurmd-{node.name}",
                f"node {node.name}",
                f"{LOOPBACK}:{layout.slurmd_port(node)}",
                (program("slurmd"), "-D", "-N", node.name),
                "root",
                lambda name=node.name: health_checks.slurmd(name, slurm),  # type: ignore[misc]
                slurm,
                reads=conf,
            )
            for node in local.nodes
        ),
        LocalService(
            "slurmrestd",
            "Slurm's REST interface",
            str(rest),
            (program("slurmrestd"), "-a", "rest_auth/local", f"unix:{rest}"),
            local.view_user,
            lambda: health_checks.unix_http(rest, "/slurm/v0.0.38/ping"),
            slurm,
            reads=(layout.slurm_conf,),
        ),
        LocalService(
            "view",
            "reads Slurm for everybody",
            str(config.view.socket),
            (program("carme-view"),),
            local.view_user,
            lambda: health_checks.unix_http(config.view.socket, "/healthz"),
            {**slurm, **carme, "CARME_BUILD": build_id()},
            reads=(layout.etc / "carme.toml",),
        ),
    ]


def _hub(layout: Layout, secrets: Secrets, proxy: Path) -> list[LocalService]:
    hub = layout.config.hub
    token = {"CONFIGPROXY_AUTH_TOKEN": secrets.proxy_token}
    return [
        LocalService(
            "proxy",
            "the web address",
            hub.url,
            (
                *(program("node"), str(proxy)),
                *("--ip", LOOPBACK, "--port", str(layout.public_port)),
                *("--api-ip", LOOPBACK, "--api-port", str(hub.proxy_port)),
                *("--default-target", f"http://{LOOPBACK}:{hub.api_port}"),
                *("--error-target", f"http://{LOOPBACK}:{hub.api_port}/hub/error"),
            ),
            hub.user,
            lambda: health_checks.http(f"{hub.url}/hub/health"),
            token,
        ),
        LocalService(
            "hub",
            "JupyterHub",
            f"{LOOPBACK}:{hub.api_port}",
            (program("jupyterhub"), "-f", str(layout.etc / "jupyterhub_config.py")),
            hub.user,
            lambda: health_checks.http(f"http://{LOOPBACK}:{hub.api_port}/hub/health"),
            {
                **token,
                "CARME_CONFIG": str(layout.etc / "carme.toml"),
                "CARME_BUILD": build_id(),
                "CARME_PROMETHEUS_TOKEN": secrets.hub_metrics_token,
                "CARME_SERVICE_TOKEN": secrets.service_token,
                "HOME": str(layout.hub_dir),
                # sudo and node are looked up by name, whatever PATH `carme up` was called with.
                "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            },
            directory=str(layout.hub_dir),
            reads=(layout.etc / "carme.toml", layout.etc / "jupyterhub_config.py"),
        ),
    ]


def _exporters(layout: Layout, secrets: Secrets) -> list[LocalService]:
    """One for each node, and one for the cluster as a whole."""
    config = layout.config
    web = config.exporter.web_config or layout.etc / "exporter/web.yml"
    found = []
    for node in (*config.local.nodes, None):
        port, name = layout.exporter_port(node), node.name if node else "controller"
        virtual = node is not None and node.gpus is not None and layout.virtual
        library = vgpu.environment(layout.vgpu_library, layout.vgpu_state, name) if virtual else {}
        which = ("--node", name) if node else ("--mode", "controller")
        found.append(
            LocalService(
                f"exporter-{name}",
                f"measures {name}" if node else "measures the cluster",
                f"{LOOPBACK}:{port}",
                (program("carme-exporter"), *which, "--port", str(port)),
                config.local.exporter_user,
                lambda port=port: health_checks.http(  # type: ignore[misc]
                    f"http://{LOOPBACK}:{port}/-/healthy", secrets.exporter_login
                ),
                {
                    "CARME_CONFIG": str(layout.etc / "carme.toml"),
                    "SLURM_CONF": str(layout.slurm_conf),
                    "CARME_BUILD": build_id(),
                    **library,
                },
                reads=(layout.etc / "carme.toml", web),
            )
        )
    return found


def _prometheus(layout: Layout, secrets: Secrets) -> list[LocalService]:
    """Which nodes there are, what is kept of them, and who hears of what is wrong."""
    config = layout.config
    port, alerts = config.local.ports.prometheus, layout.alertmanager_port
    etc = layout.etc / "prometheus"
    settings = config.prometheus
    size = settings.retention_gb
    return [
        LocalService(
            "discovery",
            "tells Prometheus the nodes",
            str(settings.targets),
            (program("carme-discovery"), "--local"),
            "prometheus",
            lambda: health_checks.nonempty(settings.targets),
            {"CARME_CONFIG": str(layout.etc / "carme.toml"), "CARME_BUILD": build_id()},
            reads=(layout.etc / "carme.toml",),
        ),
        LocalService(
            "prometheus",
            "keeps the series",
            f"{LOOPBACK}:{port}",
            (
                *(program("prometheus"), f"--config.file={etc}/prometheus.yml"),
                *(f"--web.config.file={etc}/web.yml", f"--web.listen-address={LOOPBACK}:{port}"),
                f"--storage.tsdb.path={layout.state}/prometheus",
                f"--storage.tsdb.retention.time={settings.retention_days}d",
                *((f"--storage.tsdb.retention.size={size}GB",) if size else ()),
            ),
            "prometheus",
            lambda: health_checks.http(
                f"http://{LOOPBACK}:{port}/-/ready", secrets.prometheus_login
            ),
            reads=(
                *(etc / name for name in ("prometheus.yml", "web.yml")),
                *(etc / "rules" / name for name in RULES),
            ),
        ),
        LocalService(
            "alertmanager",
            "tells people of alerts",
            f"{LOOPBACK}:{alerts}",
            (
                *(program("prometheus-alertmanager"), f"--config.file={etc}/alertmanager.yml"),
                f"--web.config.file={etc}/alertmanager-web.yml",
                f"--web.listen-address={LOOPBACK}:{alerts}",
                "--cluster.listen-address=",
                f"--storage.path={layout.state}/alertmanager",
            ),
            "prometheus",
            lambda: health_checks.http(
                f"http://{LOOPBACK}:{alerts}/-/ready", secrets.alertmanager_login
            ),
            reads=(etc / "alertmanager.yml", etc / "alertmanager-web.yml"),
        ),
    ]


def _service(layout: Layout, secrets: Secrets) -> LocalService:
    service = layout.config.service
    address = f"{service.listen}:{service.port}"
    return LocalService(
        "service",
        "predicts time and energy",
        address,
        (program("carme-service"),),
        service.user,
        lambda: health_checks.http(f"http://{address}/services/carme/healthz"),
        {
            "CARME_CONFIG": str(layout.etc / "carme.toml"),
            "CARME_BUILD": build_id(),
            "CARME_PROMETHEUS_TOKEN": secrets.hub_metrics_token,
            "JUPYTERHUB_API_TOKEN": secrets.service_token,
            "HOME": str(layout.service_dir),
        },
        directory=str(layout.service_dir),
        reads=(layout.etc / "carme.toml",),
    )
