"""What should run on this host, found out from its files and from systemd."""

import json
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from carme.config import Config, load
from carme.config.services import Service, deployed_services, local_services
from carme.doctor import slurmconf
from carme.doctor.slurmconf import ConfiguredNode, SlurmConf
from carme.errors import CarmeError

_SYSTEMD = Path("/run/systemd/system")
_UNIT_FILES = Path("/etc/systemd/system")
_SECRETS = Path("/etc/carme/secrets")
_PORT = re.compile(r"--(?:port|web\.listen-address)[ =]\"?(?:[^\s\"]*:)?(\d+)")


@dataclass(frozen=True)
class HostServices:
    """This host: its configuration, its services, its nodes."""

    config: Config
    config_path: Path | None
    services: tuple[Service, ...]
    folder: Path | None = None
    """The one-machine cluster's folder; None on a host that Ansible set up."""
    slurm: SlurmConf | None = None
    slurm_path: Path | None = None
    hostname: str = ""

    @property
    def nodes(self) -> tuple[ConfiguredNode, ...]:
        """Slurm's nodes whose slurmd should run here."""
        if not self.slurm or not self.running("slurmd"):
            return ()
        return self.slurm.nodes if self.folder else self.slurm.on(self.hostname)

    def service(self, name: str) -> Service | None:
        return next((service for service in self.services if service.name == name), None)

    def running(self, program: str) -> tuple[Service, ...]:
        """The services that run `program`: there is one slurmd and one exporter a node."""
        return tuple(service for service in self.services if service.program == program)

    def repair(self, service: Service) -> str:
        """Where the log is and how to start the service again."""
        unit = service.unit
        if self.folder:
            return f"{self.up}; its log: {self.folder}/log/{unit}.log"
        return f"journalctl -u {unit} -n 50; systemctl restart {unit}"

    @property
    def up(self) -> str:
        usual = self.folder == Config().local.dir
        return "carme up" if usual else f"carme up --dir {self.folder}"

    @property
    def description(self) -> str:
        """What this host is, for the first line of the report."""
        if self.folder:
            return f"the whole cluster on one machine, in {self.folder}"
        roles = ["head"] if self.service("hub") or self.service("slurmctld") else []
        roles += [f"node {node.name}" for node in self.nodes]
        return " and ".join(roles) or "no service of Carme is set up here"

    def secret(self, name: str) -> str:
        """A password that root can read here; empty where there is none."""
        try:
            if self.folder:
                secrets = json.loads((self.folder / "etc/secrets/secrets.json").read_bytes())
                return str(secrets.get(f"{name}_password", ""))
            return (_SECRETS / name).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""


def find(path: Path | None, config: Config) -> HostServices:
    """This host as `config` (read from `path`) and the machine say."""
    folder = _local_folder(config)
    if folder:
        path = folder / "etc/carme.toml"
        # The file that `up` was given lacks the paths that its services use.
        config = config if _is_rendered(config) else load(path)
    conf = slurmconf.find(config.slurm.conf)
    slurm = _read(conf) if conf else None
    services = (
        local_services(config, virtual_gpus=is_virtual(config))
        if folder
        else _enabled_services(config, slurm)
    )
    return HostServices(config, path, services, folder, slurm, conf, socket.gethostname())


def _local_folder(config: Config) -> Path | None:
    """Where the one-machine cluster of `config` lies, if it has been brought up."""
    folder = config.local.dir
    if not (folder / "etc/carme.toml").exists():
        return None
    # On a deployed host that has such a folder, too, the file says which of the two is meant.
    return folder if _is_rendered(config) or not _enabled() else None


def _is_rendered(config: Config) -> bool:
    """Whether this is what `carme up` wrote for its services."""
    return config.slurm.conf == config.local.dir / "etc/slurm/slurm.conf"


def _read(path: Path) -> SlurmConf | None:
    try:
        return slurmconf.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CarmeError):
        return None


def is_virtual(config: Config) -> bool:
    """Whether the GPUs are stand-ins: `carme up` tells sessions so in its carme.toml."""
    return "CARME_VGPU_DIR" in config.session.environment


def _enabled_services(config: Config, slurm: SlurmConf | None) -> tuple[Service, ...]:
    """The services whose units systemd starts on this host."""
    hostname = socket.gethostname()
    nodes = slurm.on(hostname) if slurm else ()
    ports: dict[str, int] = {}
    if slurm:
        ports = {"SlurmctldPort": slurm.controller_port, "DbdPort": slurm.database_port}
        if nodes:
            ports["SlurmdPort"] = nodes[0].port
    name = nodes[0].name if nodes else hostname.split(".")[0]
    enabled = _enabled()
    return tuple(
        replace(service, ports=_unit_ports(service)) if service.entry.port_in_unit else service
        for service in deployed_services(config, name, ports)
        if service.unit in enabled
    )


def _unit_ports(service: Service) -> tuple[int, ...]:
    """The port that the unit's command line names, in whichever file; else the configured one."""
    unit = service.unit
    files = (_UNIT_FILES / f"{unit}.service", Path("/etc/default") / unit)
    for file in (*(_UNIT_FILES / f"{unit}.service.d").glob("*.conf"), *files):
        try:
            match = _PORT.search(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if match:
            return (int(match[1]),)
    return service.ports


def enabled_units(folder: Path = _UNIT_FILES) -> frozenset[str]:
    """What systemd starts at boot: the links that `systemctl enable` makes."""
    return frozenset(link.stem for link in folder.glob("*.wants/*.service"))


def _enabled() -> frozenset[str]:
    """The same on this host; nothing where systemd does not run."""
    return enabled_units() if _SYSTEMD.is_dir() else frozenset()
