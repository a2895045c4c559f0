"""What should run on this host, found out from its files and from systemd."""

import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from carme.config import Config, load
from carme.doctor import slurmconf
from carme.doctor.slurmconf import ConfiguredNode, SlurmConf
from carme.errors import CarmeError
from carme.local.layout import LOOPBACK, Layout, cache_dir

_SYSTEMD = Path("/run/systemd/system")
_UNIT_FILES = Path("/etc/systemd/system")
_SECRETS = Path("/etc/carme/secrets")
_PORT = re.compile(r"--(?:port|web\.listen-address)[ =]\"?(?:[^\s\"]*:)?(\d+)")


@dataclass(frozen=True)
class HostService:
    """A program that should run here."""

    name: str
    unit: str
    """What systemd calls it; on the one-machine cluster, what supervisor calls it."""
    program: str = ""
    """A word of its command line."""
    ports: tuple[int, ...] = ()
    address: str = LOOPBACK
    node: str = ""


@dataclass(frozen=True)
class HostServices:
    """This host: its configuration, its parts, its nodes."""

    config: Config
    config_path: Path | None
    parts: tuple[HostService, ...]
    folder: Path | None = None
    """The one-machine cluster's folder; None on a host that Ansible set up."""
    slurm: SlurmConf | None = None
    slurm_path: Path | None = None
    hostname: str = ""

    @property
    def nodes(self) -> tuple[ConfiguredNode, ...]:
        """Slurm's nodes whose slurmd should run here."""
        runs = any(part.program == "slurmd" for part in self.parts)
        if not self.slurm or not runs:
            return ()
        return self.slurm.nodes if self.folder else self.slurm.on(self.hostname)

    def part(self, name: str) -> HostService | None:
        return next((part for part in self.parts if part.name == name), None)

    def kind(self, program: str) -> tuple[HostService, ...]:
        """The parts that are this program: one slurmd and exporter a node."""
        return tuple(part for part in self.parts if part.program == program)

    def repair(self, part: HostService) -> str:
        """Where to look and how to start it again."""
        if self.folder:
            return f"{self.up}; its log: {self.folder}/log/{part.unit}.log"
        return f"journalctl -u {part.unit} -n 50; systemctl restart {part.unit}"

    @property
    def up(self) -> str:
        usual = self.folder == Config().local.dir
        return "carme up" if usual else f"carme up --dir {self.folder}"

    @property
    def words(self) -> str:
        """What this host is, for the first line."""
        if self.folder:
            return f"the whole cluster on one machine, in {self.folder}"
        roles = ["head"] if self.part("hub") or self.part("slurmctld") else []
        roles += [f"node {node.name}" for node in self.nodes]
        return " and ".join(roles) or "no part of Carme is set up here"

    def secret(self, name: str) -> str:
        """A password that root can read here; empty where there is none."""
        try:
            if self.folder:
                known = json.loads((self.folder / "etc/secrets/secrets.json").read_bytes())
                return str(known.get(f"{name}_password", ""))
            return (_SECRETS / name).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""


def find(path: Path | None, config: Config) -> HostServices:
    """This host as `config` (read from `path`) and the machine say."""
    folder = _local_folder(config)
    if folder:
        path = folder / "etc/carme.toml"
        # The file that `up` was given lacks the paths that its parts use.
        config = config if _is_rendered(config) else load(path)
    conf = slurmconf.find(config.slurm.conf)
    slurm = _read(conf) if conf else None
    parts = _local_parts(config) if folder else _deployed_parts(config, slurm)
    return HostServices(config, path, parts, folder, slurm, conf, socket.gethostname())


def _local_folder(config: Config) -> Path | None:
    """Where the one-machine cluster of `config` lies, if it has been brought up."""
    folder = config.local.dir
    if not (folder / "etc/carme.toml").exists():
        return None
    # On a deployed host that has such a folder, too, the file says which of the two is meant.
    return folder if _is_rendered(config) or not _enabled() else None


def _is_rendered(config: Config) -> bool:
    """Whether this is what `carme up` wrote for its parts."""
    return config.slurm.conf == config.local.dir / "etc/slurm/slurm.conf"


def _read(path: Path) -> SlurmConf | None:
    try:
        return slurmconf.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CarmeError):
        return None


def _local_parts(config: Config) -> tuple[HostService, ...]:
    ports = Layout(config, cache_dir()).ports()
    nodes = config.local.nodes
    return (
        *((HostService("virtual GPUs", "vgpu"),) if is_virtual(config) else ()),
        HostService("munge", "munged"),
        HostService("mariadb", "mariadbd", "mariadbd", (ports["mariadbd"],)),
        HostService("slurmdbd", "slurmdbd", "slurmdbd", (ports["slurmdbd"],)),
        HostService("slurmctld", "slurmctld", "slurmctld", (ports["slurmctld"],)),
        *(
            HostService(f"slurmd {n.name}", part, "slurmd", (ports[part],), node=n.name)
            for n in nodes
            for part in (f"slurmd-{n.name}",)
        ),
        HostService("slurmrestd", "slurmrestd"),
        HostService("view", "view"),
        HostService(
            "proxy", "proxy", "configurable-http-proxy", (ports["proxy"], ports["proxy control"])
        ),
        HostService("hub", "hub", "jupyterhub", (ports["hub"],)),
        HostService("service", "service", "carme-service", (ports["service"],)),
        *(
            HostService(f"exporter {name}", part, "carme-exporter", (ports[part],), node=node)
            for name, node in (*((n.name, n.name) for n in nodes), ("cluster", ""))
            for part in (f"exporter-{node or 'controller'}",)
        ),
        HostService("discovery", "discovery"),
        HostService("prometheus", "prometheus", "prometheus", (ports["prometheus"],)),
        HostService("alertmanager", "alertmanager", "alertmanager", (ports["alertmanager"],)),
    )


def is_virtual(config: Config) -> bool:
    """Whether the GPUs are stand-ins: `carme up` tells sessions so in its carme.toml."""
    return "CARME_VGPU_DIR" in config.session.environment


def _deployed_parts(config: Config, slurm: SlurmConf | None) -> tuple[HostService, ...]:
    hub, exporter, service = config.hub, config.exporter, config.service
    nodes = slurm.on(socket.gethostname()) if slurm else ()
    name = nodes[0].name if nodes else socket.gethostname().split(".")[0]
    prometheus = urlsplit(config.prometheus.url)
    slurmd_port = (nodes[0].port,) if nodes else ()
    known = (
        HostService("munge", "munge"),
        HostService("mariadb", "mariadb"),
        HostService("slurmdbd", "slurmdbd", "slurmdbd", (slurm.database_port,) if slurm else ()),
        HostService(
            "slurmctld", "slurmctld", "slurmctld", (slurm.controller_port,) if slurm else ()
        ),
        HostService(f"slurmd {name}", "slurmd", "slurmd", slurmd_port, node=name),
        HostService("view", "carme-view"),
        HostService(
            *("proxy", "carme-proxy", "configurable-http-proxy"),
            (_public_port(hub.url), hub.proxy_port),
            hub.api_address,
        ),
        HostService("hub", "carme-hub", "jupyterhub", (hub.api_port,), hub.api_address),
        HostService("service", "carme-service", "carme-service", (service.port,), service.listen),
        HostService(
            *(f"exporter {name}", "carme-exporter", "carme-exporter"),
            (_unit_port("carme-exporter", exporter.port),),
            exporter.listen,
            name,
        ),
        HostService(
            *("exporter cluster", "carme-exporter-controller", "carme-exporter"),
            (_unit_port("carme-exporter-controller", exporter.port + 1),),
            exporter.listen,
        ),
        HostService("discovery", "carme-discovery"),
        HostService("prometheus", "prometheus", "prometheus", (prometheus.port or 9090,)),
        HostService(
            "alertmanager",
            "prometheus-alertmanager",
            "alertmanager",
            (_unit_port("prometheus-alertmanager", 9093),),
        ),
        HostService("grafana", "grafana-server"),
    )
    enabled = _enabled()
    return tuple(part for part in known if part.unit in enabled)


def _public_port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _unit_port(unit: str, default: int) -> int:
    """The port that the unit's command line names, wherever it is written."""
    places = (_UNIT_FILES / f"{unit}.service", Path("/etc/default") / unit)
    for place in (*(_UNIT_FILES / f"{unit}.service.d").glob("*.conf"), *places):
        try:
            found = _PORT.search(place.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return int(found[1])
    return default


def enabled_units(folder: Path = _UNIT_FILES) -> frozenset[str]:
    """What systemd starts at boot: the links that `systemctl enable` makes."""
    return frozenset(link.stem for link in folder.glob("*.wants/*.service"))


def _enabled() -> frozenset[str]:
    """The same on this host; nothing where systemd does not run."""
    return enabled_units() if _SYSTEMD.is_dir() else frozenset()
