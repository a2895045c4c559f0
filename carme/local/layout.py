"""Paths, ports and secrets of the one-machine cluster, and the configuration of its services."""

import json
import re
import secrets as random
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carme.config import Config, LocalGpus, LocalNode
from carme.config.services import LOOPBACK, Service, local_services, login_name
from carme.errors import ConfigError
from carme.local import vgpu
from carme.system.files import cache_dir, write


class Layout:
    """Paths and ports, all derived from the configuration."""

    def __init__(self, config: Config, cache: Path, virtual: bool = True) -> None:
        self.config = config
        self.cache = cache
        self.virtual = virtual
        """Whether the GPUs are virtual because the machine has none."""
        self.hostname = socket.gethostname().split(".")[0]
        """The machine's short name, by which Slurm's daemons recognise themselves."""
        self.dir = config.local.dir
        self.etc = self.dir / "etc"
        self.run = self.dir / "run"
        self.log = self.dir / "log"
        self.state = self.dir / "state"
        self.secrets = self.etc / "secrets"
        """Passwords and keys: only root can read them."""
        self.carme_toml = self.etc / "carme.toml"
        """What the services read."""
        self.slurm_conf = self.etc / "slurm/slurm.conf"
        self.munge_socket = self.run / "munge/munge.sock"
        self.mariadb_socket = self.run / "mariadb/mariadb.sock"
        self.rest_socket = self.run / "rest/slurmrestd.sock"
        self.supervisor_socket = self.run / "supervisor.sock"
        self.supervisor_conf = self.etc / "supervisord.conf"
        self.hub_dir = self.state / "hub"
        self.session_authority = self.hub_dir / "session-authority.crt"
        """The certificate by which the proxy checks sessions; the hub writes it."""
        self.service_dir = self.state / "service"
        """The prediction service's database."""
        self.gpu_allocations = self.run / "carme"
        """Where prolog and epilog record which job holds which GPU."""
        self.vgpu_state = self.state / "vgpu"

    @property
    def vgpu_library(self) -> Path:
        """The stand-in for NVIDIA's library, which all clusters on this machine share."""
        return vgpu.build_library(self.cache)

    def minors(self, node: LocalNode) -> list[int]:
        """N of each /dev/nvidiaN of the node; all nodes share one numbering."""
        return [card.minor for card in vgpu.cards(self.config.local.nodes)[node.name]]

    def services(self) -> tuple[Service, ...]:
        """Every service of the cluster, in the order in which they start."""
        has_gpus = any(node.gpus for node in self.config.local.nodes)
        return local_services(self.config, virtual_gpus=self.virtual and has_gpus)

    def service_users(self) -> list[str]:
        """The Unix users that the configuration names; the other services' are of packages."""
        services = self.services()
        names = [s.user for s in services if "." in (s.entry.local_user or s.entry.user)]
        return list(dict.fromkeys(names))

    def ports(self) -> dict[str, int]:
        """Every TCP port that the cluster listens on, by the service's name in supervisor."""
        first = {service.unit: service.ports[0] for service in self.services() if service.ports}
        return {**first, "proxy control": self.config.hub.proxy_port}


def layout_for(config: Config, apptainer: Path | None = None) -> Layout:
    """The layout of `config`, with all paths below `local.dir`."""
    base = config.local.dir
    if not base.is_absolute():
        raise ConfigError(f"local.dir must be an absolute path, not {base}")
    _check_nodes(config)
    real = vgpu.detect_real_gpus() if Path("/dev/nvidiactl").exists() else []
    changes: dict[str, Any] = {
        "slurm": {
            "conf": base / "etc/slurm/slurm.conf",
            "rest_socket": base / "run/rest/slurmrestd.sock",
        },
        "view": {"socket": base / "run/view/view.sock"},
        "hub": {"database": f"sqlite:///{base}/state/hub/hub.sqlite"},
        "exporter": {
            "run": base / "run/carme",
            "state": base / "state/exporter",
            "web_config": base / "etc/exporter/web.yml",
            "unrecorded_jobs": False,
        },
        "prometheus": {
            "targets": base / "run/discovery/nodes.json",
            "url": f"http://{LOOPBACK}:{config.local.ports.prometheus}",
            "login_file": base / "etc/view/prometheus-login",
        },
        "service": {
            "user": config.local.service_user,
            "port": config.local.ports.service,
            "database": f"sqlite:///{base}/state/service/service.sqlite",
        },
        "images": {"folder": base / "images", "apptainer": apptainer},
        "local": {"nodes": with_gpus(config.local.nodes, real)} if real else {},
    }
    if config.hub.database != type(config.hub)().database:
        del changes["hub"]
    if config.service.database != type(config.service)().database:
        del changes["service"]["database"]
    derived = config.model_copy(
        update={
            name: getattr(config, name).model_copy(update=values)
            for name, values in changes.items()
        }
    )
    services = local_services(derived, virtual_gpus=False)
    readers = dict.fromkeys(service.user for service in services if service.entry.reads_view)
    view = derived.view.model_copy(update={"readers": tuple(readers)})
    return Layout(derived.model_copy(update={"view": view}), cache_dir(), virtual=not real)


def with_gpus(nodes: tuple[LocalNode, ...], real: list[vgpu.RealGpu]) -> tuple[LocalNode, ...]:
    """The nodes with the machine's real GPUs, all on the first node that declares GPUs."""
    kind = re.sub(r"[^a-z0-9]+", "-", real[0].name.lower()).strip("-")[:32]
    holder = next((node for node in nodes if node.gpus), nodes[0])
    return tuple(
        node.model_copy(
            update={"gpus": LocalGpus(type=kind, count=len(real)) if node is holder else None}
        )
        for node in nodes
    )


def _check_nodes(config: Config) -> None:
    names = [node.name for node in config.local.nodes]
    if len(set(names)) < len(names):
        raise ConfigError("local.nodes: two nodes have the same name")
    for partition in config.local.partitions:
        unknown = sorted(set(partition.nodes) - set(names))
        if unknown:
            raise ConfigError(
                f"local.partitions: {partition.name} names unknown nodes: {', '.join(unknown)}",
                f"nodes are {', '.join(names)}",
            )


@dataclass(frozen=True)
class Secrets:
    """Passwords and tokens that services share; only root can read the file."""

    mariadb_password: str
    proxy_token: str
    hub_metrics_token: str
    prometheus_password: str
    exporter_password: str
    alertmanager_password: str
    service_token: str

    @property
    def prometheus_login(self) -> tuple[str, str]:
        return (login_name("prometheus"), self.prometheus_password)

    @property
    def alertmanager_login(self) -> tuple[str, str]:
        return (login_name("alertmanager"), self.alertmanager_password)

    @property
    def exporter_login(self) -> tuple[str, str]:
        return (login_name("carme-exporter"), self.exporter_password)


def ensure_secrets(folder: Path) -> Secrets:
    """The secrets stored in `folder`; missing ones are created."""
    file = folder / "secrets.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    names = Secrets.__dataclass_fields__
    secrets = Secrets(**{name: stored.get(name) or random.token_hex(24) for name in names})
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write(file, json.dumps(asdict(secrets)), mode=0o600)
    return secrets
