"""Where everything of the one-machine cluster lies, and the configuration its parts read."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from carme.config import Config, LocalNode
from carme.errors import ConfigError

LOOPBACK = "127.0.0.1"


def cache_dir() -> Path:
    """Where slow results (images, downloads) are kept between checkouts and clusters."""
    named = os.environ.get("CARME_CACHE")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/cache/carme")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme"


@dataclass(frozen=True)
class Layout:
    """Paths and ports, all derived from the configuration."""

    config: Config
    cache: Path

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
    def hostname(self) -> str:
        """The machine's short name, by which Slurm's daemons recognise themselves."""
        return socket.gethostname().split(".")[0]

    @property
    def public_port(self) -> int:
        return urlsplit(self.config.hub.url).port or 80

    def slurmd_port(self, node: LocalNode) -> int:
        return self.config.local.ports.slurmd_first + self.config.local.nodes.index(node)

    def first_minor(self, node: LocalNode) -> int:
        """The number of the node's first /dev/nvidiaN; nodes on one machine share the numbers."""
        before = self.config.local.nodes[: self.config.local.nodes.index(node)]
        return sum(other.gpus.count for other in before if other.gpus)

    def ports(self) -> dict[str, int]:
        """Every TCP port that the cluster listens on, by the part that does."""
        local, hub = self.config.local, self.config.hub
        return {
            "proxy": self.public_port,
            "proxy control": hub.proxy_port,
            "hub": hub.api_port,
            "slurmctld": local.ports.slurmctld,
            "slurmdbd": local.ports.slurmdbd,
            "mariadbd": local.ports.mariadb,
            "prometheus": local.ports.prometheus,
            **{f"slurmd-{node.name}": self.slurmd_port(node) for node in local.nodes},
        }


def layout_for(config: Config, apptainer: Path | None = None) -> Layout:
    """The layout of `config`, whose paths are replaced by those below `local.dir`."""
    base = config.local.dir
    if not base.is_absolute():
        raise ConfigError(f"local.dir must be an absolute path, not {base}")
    _check_nodes(config)
    derived = config.model_copy(
        update={
            "slurm": config.slurm.model_copy(
                update={
                    "conf": base / "etc/slurm/slurm.conf",
                    "rest_socket": base / "run/rest/slurmrestd.sock",
                }
            ),
            "view": config.view.model_copy(
                update={
                    "socket": base / "run/view/view.sock",
                    "readers": (config.hub.user,),
                }
            ),
            "hub": config.hub.model_copy(
                update={"database": f"sqlite:///{base}/state/hub/hub.sqlite"}
                if config.hub.database == type(config.hub)().database
                else {}
            ),
            "images": config.images.model_copy(
                update={"folder": base / "images", "apptainer": apptainer}
            ),
            # Without a driver Apptainer's flag would only warn.
            "session": config.session.model_copy(update={"gpu_flag": ""}),
        }
    )
    return Layout(derived, cache_dir())


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
