"""Hosts with real systemd for the deployment's tests: systemd-nspawn machines on a bridge.

Each host starts from a copy of the base system. Downloaded packages go to a pool in the cache that
every new host gets: a second run downloads almost nothing.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from carme.local import packages
from carme.system.files import locked
from carme.system.programs import run
from support import base_system
from support.bridge import BRIDGE, Network, take_down
from support.cluster import wait_for

APT_CACHE = "var/cache/apt/archives"
NETWORK = """\
[Match]
Name=host0

[Network]
Address={address}/24
Gateway={gateway}
"""
# Linux 6.18 numbers namespaces from a block of 4096 for each processor, and refuses to bind a mount
# namespace with a number below the caller's, as slurmstepd does for a job's /tmp. A machine with a
# high number could start jobs on some processors only. So all take a new block after a boot.
NAMESPACES = """\
import ctypes, os
unshare = ctypes.CDLL(None).unshare
for processor in os.sched_getaffinity(0):
    os.sched_setaffinity(0, {processor})
    for _ in range(4097):
        unshare(0x04000000)  # CLONE_NEWUTS, the cheapest
"""


SSH_OPTIONS = (
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5", "-o", "BatchMode=yes"),
)

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")


@dataclass
class Machine:
    """One host: its files, its address, its process."""

    name: str
    address: str
    root: Path
    key: Path
    binds: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        # Several hosts share this limit of root's, and systemd does not boot without a watch.
        INOTIFY.write_text(str(max(int(INOTIFY.read_text()), 1024)))
        argv = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot"),
            *(f"--directory={self.root}", f"--machine=ct-{self.name}"),
            *(f"--network-bridge={BRIDGE}", "--bind=/dev/fuse", "--resolv-conf=off"),
            *(
                f"--bind={bind}" if ":ro" not in bind else f"--bind-ro={bind[:-3]}"
                for bind in self.binds
            ),
        ]
        with self.root.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, seconds: float = 90) -> None:
        """Wait until ssh answers."""

        def is_up() -> bool:
            assert self.process
            log = self.root.with_suffix(".log")
            assert self.process.poll() is None, f"{self.name} ended: {log.read_text()[-1000:]}"
            with socket.socket() as probe:
                probe.settimeout(1)
                return probe.connect_ex((self.address, 22)) == 0

        wait_for(is_up, seconds, f"ssh on {self.name}")
        run([sys.executable, "-c", NAMESPACES])

    def ssh(
        self, *argv: str, user: str = "root", **kwargs: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command over ssh; arguments are quoted for the remote shell."""
        defaults = {"capture_output": True, "text": True, "timeout": 120}
        command = ["ssh", "-i", str(self.key), *SSH_OPTIONS, f"{user}@{self.address}"]
        return subprocess.run([*command, shlex.join(argv)], **{**defaults, **kwargs})

    def run(self, *argv: str, **kwargs: Any) -> str:
        result = self.ssh(*argv, **kwargs)
        assert result.returncode == 0, f"{self.name}: {argv}: {result.stdout}{result.stderr}"
        return result.stdout

    def reboot(self) -> None:
        """Reboot cleanly, and wait until ssh answers again.

        nspawn without a systemd unit ends at a reboot, so it is started again here.
        """
        assert self.process
        self.ssh("systemctl", "reboot")
        self.process.wait(90)
        self.start()
        self.wait()

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # nspawn hands it on as a shutdown
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                _kill(psutil.Process(self.process.pid))
                self.process.wait(10)


@dataclass
class Machines:
    """All hosts of a test, with their bridge and their shared folder."""

    folder: Path
    cache: Path
    network: Network
    binds: tuple[str, ...] = ()
    hosts: dict[str, Machine] = field(default_factory=dict)

    @property
    def key(self) -> Path:
        return self.folder / "ssh_key"

    def prepare(self) -> None:
        """Create the bridge and the ssh key."""
        self.folder.mkdir(parents=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key])
        self.network.set_up(self.folder / "network")

    def add(self, name: str, binds: tuple[str, ...] = ()) -> Machine:
        """Boot a new bare host. It replaces an existing one with the same name and address."""
        old = self.hosts.get(name)
        if old:
            old.stop()
            self._keep_downloads(old)
            shutil.rmtree(old.root)
        address = old.address if old else self.network.address(len(self.hosts))
        root = self.folder / name
        image = base_system.base_image(self.cache)
        run(["cp", "-a", "--reflink=auto", image, root], timeout_seconds=300)
        pip, npm = (self.cache / part for part in ("pip", "npm"))
        for cache_folder in (pip, npm, self._pool):
            cache_folder.mkdir(parents=True, exist_ok=True)
        # Hard links: hosts cannot share a folder, because apt locks it.
        for package in self._pool.glob("*.deb"):
            link = root / APT_CACHE / package.name
            if not link.exists():
                link.hardlink_to(package)
        machine = Machine(name, address, root, self.key)
        named = self._settle(machine)
        machine.binds = (
            *(f"{pip}:/root/.cache/pip", f"{npm}:/root/.npm"),
            *(f"{path}:{path}:ro" for path in named),
            *(*self.binds, *binds),
        )
        self.hosts[name] = machine
        machine.start()
        machine.wait()
        return machine

    @property
    def _pool(self) -> Path:
        """Packages that any host downloaded; their names include the version."""
        return self.cache / "debs/pool"

    def _keep_downloads(self, machine: Machine) -> None:
        for package in (machine.root / APT_CACHE).glob("*.deb"):
            link = self._pool / package.name
            if not link.exists():
                link.hardlink_to(package)

    def _settle(self, machine: Machine) -> list[str]:
        """Set name, address, key and mirrors. Returns folders of this machine that the mirrors'
        settings name."""
        root = machine.root
        (root / "etc/hostname").write_text(f"{machine.name}\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
        text = NETWORK.format(address=machine.address, gateway=self.network.gateway)
        (root / "etc/systemd/network/10-host0.network").write_text(text)
        for home in ("root", base_system.ADMIN_HOME):
            let_in(root / home, self.key)
        return base_system.reach_packages(root)

    def purge(self) -> None:
        """Stop everything, and leave nothing behind but the cache."""
        for machine in self.hosts.values():
            machine.stop()
            self._keep_downloads(machine)
        remove_leftovers(self.folder)


def let_in(home: Path, key: Path) -> None:
    """Authorise the ssh key for the owner of the home."""
    folder, owner = home / ".ssh", home.stat()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    for path in (folder, folder / "authorized_keys"):
        os.chown(path, owner.st_uid, owner.st_gid)


def _kill(nspawn: psutil.Process) -> None:
    """Kill the machine's init, which survives nspawn; all its other processes end with it."""
    family = [*nspawn.children(), nspawn]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, 20)


def remove_leftovers(folder: Path) -> None:
    """Remove processes, bridge, firewall rule and files of a killed run."""
    for process in psutil.process_iter(["name", "cmdline"]):
        argv = process.info["cmdline"] or []
        if process.info["name"] == "systemd-nspawn" and any(
            word.startswith(f"--directory={folder}/") for word in argv
        ):
            _kill(process)
    take_down(folder / "network")
    # Slurm on the machines created folders in this kernel's cgroups.
    for machine in folder.glob("*/"):
        for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{machine.name}"):
            for inner in (*sorted(top.rglob("*/"), reverse=True), top):
                with suppress(OSError):  # a process that has not ended yet
                    inner.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def machines(cache: Path, binds: tuple[str, ...] = ()) -> Iterator[Machines]:
    """An empty set of hosts; removed afterwards in any case."""
    if reason := base_system.why_not():
        pytest.skip(reason)
    needed = {
        "systemd-container": "machines with systemd",
        "debootstrap": "their system",
        "openssh-client": "Ansible's way in",
        "iptables": "their way out",
        "iproute2": "their network",
    }
    packages.install(needed, print, Path("/dev/null"))
    cache.mkdir(parents=True, exist_ok=True)
    if reason := base_system.try_nspawn(cache):
        pytest.skip(reason)
    folder = cache / "running"
    with locked(Path("/run/carme-machines.lock")):
        remove_leftovers(folder)
        machine_set = Machines(folder, cache, Network.free(), binds)
        try:
            machine_set.prepare()
            yield machine_set
        finally:
            if not os.environ.get("CARME_KEEP_MACHINES"):
                machine_set.purge()
