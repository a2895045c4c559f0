"""Whether this machine can run the cluster; each error says what to do."""

import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from carme.config.services import LOOPBACK
from carme.errors import ConfigError, MissingError, UnavailableError
from carme.local.layout import Layout
from carme.system.apptainer import allow_containers

SUPPORTED = {
    ("debian", "12"): "tested",
    ("debian", "13"): "best effort",
    ("ubuntu", "24.04"): "best effort",
}
NEEDED_GB = 6
"""Size of what the first `up` writes: packages, Apptainer, the base image, its build folder."""


def check(layout: Layout, running: bool) -> str:
    """The name of the operating system, if the machine meets all needs of the cluster."""
    system = check_system()
    check_python(Path(sys.prefix))
    check_kernel()
    if not running:
        check_disk([layout.dir, layout.cache])
        check_ports(layout.ports())
    return system


def check_root() -> None:
    """Only root can install packages, create users and start slurmd."""
    if os.geteuid() != 0:
        raise ConfigError(
            "the one-machine cluster needs root: it creates users and starts slurmd",
            "run it with sudo; predictions need neither: pip install 'carme[simulator]'",
        )


def check_system(release: Path = Path("/etc/os-release")) -> str:
    """The operating system, such as `Debian 12`; ConfigError if it is not supported."""
    try:
        lines = release.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    name = fields.get("ID", "unknown").strip('"')
    version = fields.get("VERSION_ID", "").strip('"')
    if (name, version) not in SUPPORTED:
        raise ConfigError(
            f"this is {name} {version or '(no version)'}, and the one-machine cluster runs on "
            "Debian 12 (tested), Debian 13 and Ubuntu 24.04 (best effort)",
            "use one of these, for example in a virtual machine; "
            "pip install 'carme[simulator]' works anywhere",
        )
    if os.uname().machine != "x86_64":
        raise ConfigError(f"this is {os.uname().machine}, and the one-machine cluster needs x86_64")
    return f"{name.capitalize()} {version}"


def check_python(prefix: Path) -> None:
    """Users run the helper from this environment, so all users must be able to read it."""
    interpreter = Path(sys.executable).resolve()
    for path in (prefix.resolve(), interpreter):
        for folder in (path, *path.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                raise ConfigError(
                    f"other users cannot reach {path}: they may not enter {folder}",
                    "install carme in an environment made with /usr/bin/python3 outside /root",
                )


def check_disk(folders: Iterable[Path], needed_gb: float = NEEDED_GB) -> None:
    """Whether the disks have room for everything that the first start writes."""
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free_gb = shutil.disk_usage(existing).free / 2**30
        if free_gb < needed_gb:
            raise UnavailableError(
                f"{existing} has {free_gb:.1f} GB free, but {folder} needs {needed_gb} GB",
                "free some space, or name another folder with --dir (and CARME_CACHE)",
            )


def check_ports(ports: dict[str, int]) -> None:
    """Whether all ports are free; the error names the program that uses a port."""
    doubled = {port for port in ports.values() if list(ports.values()).count(port) > 1}
    if doubled:
        names = [name for name, port in ports.items() if port in doubled]
        raise ConfigError(f"{' and '.join(names)} have the same port", "see carme config show")
    in_use = []
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                in_use.append(f"{port} (of {name}, used by {_port_user(port)})")
    if in_use:
        raise UnavailableError(
            f"port in use: {', '.join(in_use)}",
            "stop that program, or choose others in carme.toml: hub.url, hub.*_port, local.ports",
        )


def _port_user(port: int) -> str:
    for connection in psutil.net_connections("inet"):
        address = tuple(connection.laddr)
        if connection.status == psutil.CONN_LISTEN and address[1:] == (port,) and connection.pid:
            return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    return "another program"


def cgroup_plugin(root: Path = Path("/sys/fs/cgroup")) -> str:
    """Slurm's plugin for the cgroup version of this machine."""
    if (root / "cgroup.controllers").exists():
        return "cgroup/v2"
    missing = [
        name for name in ("memory", "devices", "freezer", "cpuset") if not (root / name).is_dir()
    ]
    if missing:
        raise MissingError(
            f"the kernel has no cgroup controller {', '.join(missing)} below {root}",
            "mount the cgroup file systems, or boot a kernel that has them",
        )
    return "cgroup/v1"


def check_kernel(proc: Path = Path("/proc")) -> None:
    """Whether the kernel has what jobs' cgroups and rootless containers need."""
    cgroup_plugin()
    allow_containers()
    restricted = proc / "sys/kernel/apparmor_restrict_unprivileged_userns"
    if restricted.exists() and int(restricted.read_text(encoding="ascii")):
        raise MissingError(
            "AppArmor does not let users create user namespaces, so no container can start",
            "run: sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
