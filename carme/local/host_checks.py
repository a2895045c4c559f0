"""Whether this machine can run the cluster: each obstacle is one line with what to do."""

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
"""What a first `up` writes: packages, Apptainer, the base image, its build folder."""


def check(layout: Layout, running: bool) -> str:
    """The name of the system, when everything holds that the cluster needs; else an error."""
    system = check_system()
    check_python(Path(sys.prefix))
    check_kernel()
    if not running:
        check_disk([layout.dir, layout.cache])
        check_ports(layout.ports())
    return system


def check_root() -> None:
    """Only root can install packages, make users and start slurmd."""
    if os.geteuid() != 0:
        raise ConfigError(
            "the one-machine cluster needs root: it makes users and starts slurmd",
            "run it with sudo; predictions need neither: pip install 'carme[simulator]'",
        )


def check_system(release: Path = Path("/etc/os-release")) -> str:
    """`Debian 12` and the like; other systems are refused before anything is written."""
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
    """Users' jobs run the helper from this environment, so everybody must be able to read it."""
    interpreter = Path(sys.executable).resolve()
    for path in (prefix.resolve(), interpreter):
        for folder in (path, *path.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                raise ConfigError(
                    f"other users cannot reach {path}: {folder} is closed to them",
                    "install carme in an environment made with /usr/bin/python3 outside of /root",
                )


def check_disk(folders: Iterable[Path], needed_gb: float = NEEDED_GB) -> None:
    """Enough room for everything that a first start writes."""
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free_gb = shutil.disk_usage(there).free / 2**30
        if free_gb < needed_gb:
            raise UnavailableError(
                f"{there} has {free_gb:.1f} GB free, and {needed_gb} GB are needed below {folder}",
                "free some space, or name another folder with --dir (and CARME_CACHE)",
            )


def check_ports(ports: dict[str, int]) -> None:
    """All ports free; a taken one is named with the program that has it."""
    doubled = {port for port in ports.values() if list(ports.values()).count(port) > 1}
    if doubled:
        names = [name for name, port in ports.items() if port in doubled]
        raise ConfigError(
            f"the same port is given to {' and '.join(names)}", "see carme config show"
        )
    taken = []
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                taken.append(f"{port} (wanted for {name}, held by {_holder(port)})")
    if taken:
        raise UnavailableError(
            f"port taken: {', '.join(taken)}",
            "stop that program, or choose others in carme.toml: hub.url, hub.*_port, local.ports",
        )


def _holder(port: int) -> str:
    for connection in psutil.net_connections("inet"):
        here = tuple(connection.laddr)
        if connection.status == psutil.CONN_LISTEN and here[1:] == (port,) and connection.pid:
            return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    return "another program"


def cgroup_plugin(root: Path = Path("/sys/fs/cgroup")) -> str:
    """Slurm's plugin for the cgroups that this machine has."""
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
    """Job cgroups, and what containers need to start without root."""
    cgroup_plugin()
    allow_containers()
    restricted = proc / "sys/kernel/apparmor_restrict_unprivileged_userns"
    if restricted.exists() and int(restricted.read_text(encoding="ascii")):
        raise MissingError(
            "AppArmor keeps users from making user namespaces, so no container can start",
            "run: sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
