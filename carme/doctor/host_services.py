"""What should run on this host, according to its files and systemd."""

import json
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from carme.config import Config, load
from carme.config.services import Service, deployed_services, local_services
from carme.doctor import slurmconf
from carme.doctor.slurmconf import ConfiguredNode, SlurmConf

_SYSTEMD = Path("/run/systemd/system")
_UNIT_FILES = Path("/etc/systemd/system")
_SECRETS = Path("/etc/carme/secrets")
_PORT = re.compile(
    r"(?:--(?:port|web\.listen-address)|GF_SERVER_HTTP_PORT)[ =]\"?(?:[^\s\"]*:)?(\d+)"
)


@dataclass(frozen=True)
class HostServices:
    """The configuration, services and nodes of this host."""

    config: Config
    config_path: Path | None
    services: tuple[Service, ...]
    folder: Path | None = None
    """The folder of the one-machine cluster; None on a host that Ansible deployed."""
    slurm: SlurmConf | None = None
    slurm_path: Path | None = None
    hostname: str = ""

    @property
    def nodes(self) -> tuple[ConfiguredNode, ...]:
        """The Slurm nodes whose slurmd should run on this host."""
        if not self.slurm or not self.running("slurmd"):
            return ()
        return self.slurm.nodes if self.folder else self.slurm.on(self.hostname)

    def service(self, name: str) -> Service | None:
        return next((service for service in self.services if service.name == name), None)

    def running(self, program: str) -> tuple[Service, ...]:
        """The services that run `program`: each node has its own slurmd and exporter."""
        return tuple(service for service in self.services if service.program == program)

    def repair(self, service: Service) -> str:
        """How to read the log and restart the service."""
        unit = service.unit
        if self.folder:
            return f"{self.up}; its log: {self.folder}/log/{unit}.log"
        return f"journalctl -u {unit} -n 50; systemctl restart {unit}"

    @property
    def up(self) -> str:
        is_default = self.folder == Config().local.dir
        return "carme up" if is_default else f"carme up --dir {self.folder}"

    @property
    def description(self) -> str:
        """The role of this host, for the first line of the report."""
        if self.folder:
            return f"the whole cluster on one machine, in {self.folder}"
        roles = ["head"] if self.service("hub") or self.service("slurmctld") else []
        roles += [f"node {node.name}" for node in self.nodes]
        return " and ".join(roles) or "no service of Carme is set up here"

    def secret(self, name: str) -> str:
        """A password that only root can read; empty if there is none."""
        try:
            if self.folder:
                secrets = json.loads((self.folder / "etc/secrets/secrets.json").read_bytes())
                return str(secrets.get(f"{name}_password", ""))
            return (_SECRETS / name).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""


def find(path: Path | None, config: Config) -> HostServices:
    """This host according to `config`, read from `path`, and to the machine."""
    folder = _local_folder(config)
    if folder:
        path = folder / "etc/carme.toml"
        # The configuration file passed to `carme up` lacks the paths that its services use.
        config = config if _is_rendered(config) else load(path)
    conf = slurmconf.find(config.slurm.conf)
    slurm = slurmconf.read(conf) if conf else None
    services = (
        local_services(config, virtual_gpus=is_virtual(config))
        if folder
        else _enabled_services(config, slurm)
    )
    return HostServices(config, path, services, folder, slurm, conf, socket.gethostname())


def _local_folder(config: Config) -> Path | None:
    """The folder of the one-machine cluster of `config`, if it has been started."""
    folder = config.local.dir
    if not (folder / "etc/carme.toml").exists():
        return None
    # A deployed host may have such a folder, too: then `config` decides.
    return folder if _is_rendered(config) or not _enabled() else None


def _is_rendered(config: Config) -> bool:
    """Whether this is the configuration that `carme up` wrote for its services."""
    return config.slurm.conf == config.local.dir / "etc/slurm/slurm.conf"


def is_virtual(config: Config) -> bool:
    """Whether the GPUs are virtual: `carme up` writes this into the sessions' environment."""
    return "CARME_VGPU_DIR" in config.session.environment


def _enabled_services(config: Config, slurm: SlurmConf | None) -> tuple[Service, ...]:
    """The services whose units are enabled on this host."""
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
    """The port on the unit's command line; without one, the configured ports."""
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
    """The services that systemd starts at boot: the links of `systemctl enable`."""
    return frozenset(link.stem for link in folder.glob("*.wants/*.service"))


def _enabled() -> frozenset[str]:
    """The enabled services of this host; none without systemd."""
    return enabled_units() if _SYSTEMD.is_dir() else frozenset()
