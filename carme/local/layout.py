"""Where everything of the one-machine cluster lies, and the configuration its services read."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.config import Config, LocalGpus, LocalNode
from carme.config.services import LOOPBACK, Service, local_services
from carme.errors import ConfigError
from carme.local import vgpu
from carme.system.files import cache_dir


@dataclass(frozen=True)
class Layout:
    """Paths and ports, all derived from the configuration."""

    config: Config
    cache: Path
    virtual: bool = True
    """Whether the GPUs are stand-ins, because the machine has none."""

    @property
    def dir(self) -> Path:
        return self.config.local.dir

    @property
    def etc(self) -> Path:
        return self.dir / "etc"

    @property
    def run(self) -> Path:
        return self.dir / "run"

    @property
    def log(self) -> Path:
        return self.dir / "log"

    @property
    def state(self) -> Path:
        return self.dir / "state"

    @property
    def secrets(self) -> Path:
        """Passwords and keys: readable by root alone."""
        return self.etc / "secrets"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm/slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge/munge.sock"

    @property
    def mariadb_socket(self) -> Path:
        return self.run / "mariadb/mariadb.sock"

    @property
    def supervisor_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def supervisor_conf(self) -> Path:
        return self.etc / "supervisord.conf"

    @property
    def hub_dir(self) -> Path:
        return self.state / "hub"

    @property
    def gpu_allocations(self) -> Path:
        """Where prolog and epilog record which job holds which GPU."""
        return self.run / "carme"

    @property
    def service_dir(self) -> Path:
        """The prediction service's database."""
        return self.state / "service"

    @property
    def vgpu_state(self) -> Path:
        return self.state / "vgpu"

    @property
    def vgpu_library(self) -> Path:
        """The stand-in for NVIDIA's library: same place for every cluster on this machine."""
        return vgpu.build_library(self.cache)

    @property
    def hostname(self) -> str:
        """The machine's short name, by which Slurm's daemons recognise themselves."""
        return socket.gethostname().split(".")[0]

    def minors(self, node: LocalNode) -> list[int]:
        """N of the node's /dev/nvidiaN; nodes on one machine share the numbers."""
        return vgpu.minors(self.config.local.nodes)[node.name]

    def services(self) -> tuple[Service, ...]:
        """Every service of the cluster, in the order in which they start."""
        has_gpus = any(node.gpus for node in self.config.local.nodes)
        return local_services(self.config, virtual_gpus=self.virtual and has_gpus)

    def ports(self) -> dict[str, int]:
        """Every TCP port that the cluster listens on, by supervisor's name for the service."""
        first = {service.unit: service.ports[0] for service in self.services() if service.ports}
        return {**first, "proxy control": self.config.hub.proxy_port}


def layout_for(config: Config, apptainer: Path | None = None) -> Layout:
    """The layout of `config`, whose paths are replaced by those below `local.dir`."""
    base = config.local.dir
    if not base.is_absolute():
        raise ConfigError(f"local.dir must be an absolute path, not {base}")
    _check_nodes(config)
    real = vgpu.detect_real_gpus() if Path("/dev/nvidiactl").exists() else []
    readers = (config.hub.user, config.local.exporter_user, config.local.service_user)
    changes: dict[str, Any] = {
        "slurm": {
            "conf": base / "etc/slurm/slurm.conf",
            "rest_socket": base / "run/rest/slurmrestd.sock",
        },
        "view": {"socket": base / "run/view/view.sock", "readers": readers},
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
    return Layout(derived, cache_dir(), virtual=not real)


def with_gpus(nodes: tuple[LocalNode, ...], real: list[vgpu.RealGpu]) -> tuple[LocalNode, ...]:
    """The same nodes with the machine's own GPUs, all on the first node that has any."""
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
                f"local.partitions: {partition.name} names nodes that are not there: "
                f"{', '.join(unknown)}",
                f"nodes are {', '.join(names)}",
            )
