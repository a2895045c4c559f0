"""Hosts with real systemd for the deployment's tests: systemd-nspawn machines on a bridge.

A base system is made once with debootstrap and kept in the cache; each host starts from a copy.
Downloaded packages go to a pool in the cache, too, that every new host is given: a second run
downloads next to nothing. What a host needs to reach packages is taken from this machine's own
settings.
"""

import fcntl
import hashlib
import ipaddress
import json
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

from carme import mirrors
from support.cluster import wait_for

SUITE = "bookworm"
INCLUDE = (
    *("systemd", "systemd-sysv", "dbus", "python3", "iproute2", "openssh-server"),
    *("ca-certificates", "procps", "sudo"),
)
BRIDGE = "carmetest0"
SUBNETS = [f"10.{number}.0.0/24" for number in range(77, 100)]
APT_CACHE = "var/cache/apt/archives"
CA_FILE = "/etc/ssl/carme-test-ca.crt"
NETWORK = """\
[Match]
Name=host0

[Network]
Address={address}/24
Gateway={gateway}
"""
# nspawn mounts the v1 controllers read-only, and slurmd makes job cgroups in them. It mounts a boot
# id of the machine's own over the kernel's, which a unit with ProtectKernelTunables does not see:
# prolog and exporter would not agree on the boot.
CGROUPS = """\
[Unit]
Description=This test machine is as a host of its own for Slurm and units
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/test-cgroups

[Install]
WantedBy=sysinit.target
"""
CGROUPS_SCRIPT = """\
#!/bin/sh
while read -r _ folder kind _; do
    case $folder in /sys/fs/cgroup*) mount -o remount,bind,rw "$folder" || true ;; esac
done </proc/mounts
umount /proc/sys/kernel/random/boot_id || true
"""

# Linux 6.18 numbers namespaces from a block of 4096 for each processor, and lets nobody bind a
# mount namespace whose number is below one's own, as slurmstepd does for a job's /tmp. A machine
# with a high number could start jobs on some processors only. So all take a new block after a boot.
NAMESPACES = """\
import ctypes, os
unshare = ctypes.CDLL(None).unshare
for processor in os.sched_getaffinity(0):
    os.sched_setaffinity(0, {processor})
    for _ in range(4097):
        unshare(0x04000000)  # CLONE_NEWUTS, the cheapest
"""


def _run(*argv: object, **kwargs: Any) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, **kwargs)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, argv))}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def why_not() -> str:
    """Why no such machines can run here; empty when they can."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        return "systemd-nspawn machines need root on Debian"
    capabilities = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff")
    )
    if not capabilities & (1 << 21):
        return "systemd-nspawn machines need CAP_SYS_ADMIN"
    return ""


def _try_nspawn(cache: Path) -> str:
    """Why the kernel or whoever runs this machine does not let nspawn work; empty if it does."""
    argv = [
        *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"),
        *("--volatile=yes", f"--directory={base_image(cache)}", "/usr/bin/true"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return f"systemd-nspawn does not run here: {done.stderr[-300:]}" if done.returncode else ""


def base_image(cache: Path) -> Path:
    """The folder of a bare Debian with systemd and sshd, made once."""
    key = hashlib.sha256(
        json.dumps([SUITE, INCLUDE, CGROUPS, CGROUPS_SCRIPT]).encode()
    ).hexdigest()[:12]
    folder = cache / f"base-{key}"
    if folder.exists():
        return folder
    partial = cache / f".base-{key}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    source = mirrors.debian_mirror(mirrors.apt_sources())
    downloads = cache / "debs/base"
    downloads.mkdir(parents=True, exist_ok=True)
    _run(
        *("debootstrap", "--variant=minbase", f"--include={','.join(INCLUDE)}"),
        *(f"--cache-dir={downloads}", SUITE, partial, source.uri),
        timeout=900,
    )
    (partial / "etc/systemd/system/test-cgroups.service").write_text(CGROUPS)
    script = partial / "usr/local/sbin/test-cgroups"
    script.write_text(CGROUPS_SCRIPT)
    script.chmod(0o755)
    _run("chroot", partial, "systemctl", "enable", "test-cgroups", "systemd-networkd", "ssh")
    _run("chroot", partial, "systemctl", "mask", "getty.target", "console-getty.service")
    (partial / "etc/machine-id").write_text("")
    partial.rename(folder)
    return folder


def _apt_lines() -> str:
    """Debian's own suites as this machine reaches them."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    return "".join(
        f"deb [signed-by={keyring}] {source.uri} {source.suite} {' '.join(source.components)}\n"
        for source in mirrors.apt_sources()
        if source.suite.startswith(SUITE) and "main" in source.components
    )


def _pip_folders(settings: dict[str, str]) -> list[str]:
    """Folders of this machine that pip's settings name."""
    words = " ".join(settings.values()).split()
    paths = {word.removeprefix("file://") for word in words if word.startswith(("file:///", "/"))}
    tops = {Path(path) for path in paths if Path(path).is_dir()}
    # An index's files may lie beside its `simple` folder.
    return sorted({str(top.parent if top.name == "simple" else top) for top in tops})


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
        argv = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot"),
            *(f"--directory={self.root}", f"--machine=ct-{self.name}"),
            *(f"--network-bridge={BRIDGE}", "--bind=/dev/fuse", "--resolv-conf=off"),
            *(
                f"--bind={bind}" if ":ro" not in bind else f"--bind-ro={bind[:-3]}"
                for bind in self.binds
            ),
        ]
        with self.root.with_suffix(".log").open("ab") as out:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def wait(self, seconds: float = 90) -> None:
        """Until ssh answers."""

        def there() -> bool:
            assert self.process
            log = self.root.with_suffix(".log")
            assert self.process.poll() is None, f"{self.name} ended: {log.read_text()[-1000:]}"
            with socket.socket() as probe:
                probe.settimeout(1)
                return probe.connect_ex((self.address, 22)) == 0

        wait_for(there, seconds, f"ssh on {self.name}")
        _run(sys.executable, "-c", NAMESPACES)

    def ssh(self, *argv: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
        """A command as root over ssh; words are quoted for the remote shell."""
        defaults = {"capture_output": True, "text": True, "timeout": 120}
        command = ["ssh", "-i", str(self.key), *SSH_OPTIONS, f"root@{self.address}"]
        return subprocess.run([*command, shlex.join(argv)], **{**defaults, **kwargs})

    def run(self, *argv: str, **kwargs: Any) -> str:
        done = self.ssh(*argv, **kwargs)
        assert done.returncode == 0, f"{self.name}: {argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def reboot(self) -> None:
        """A clean reboot, and until ssh answers again.

        Without a unit of its own nspawn ends where it would start the system again.
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


SSH_OPTIONS = (
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5", "-o", "BatchMode=yes"),
)


@dataclass
class Machines:
    """All hosts of a test, with their bridge and their shared folder."""

    folder: Path
    cache: Path
    network: ipaddress.IPv4Network
    binds: tuple[str, ...] = ()
    hosts: dict[str, Machine] = field(default_factory=dict)

    @property
    def gateway(self) -> str:
        return str(self.network[1])

    @property
    def key(self) -> Path:
        return self.folder / "ssh_key"

    def prepare(self) -> None:
        """The bridge with its way out, the key."""
        self.folder.mkdir(parents=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        (self.folder / "network").write_text(str(self.network))
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run("iptables", *_masquerade("-A", self.network))

    def add(self, name: str, binds: tuple[str, ...] = ()) -> Machine:
        """A new bare host, booted. One that is there already is replaced: same name and address."""
        old = self.hosts.get(name)
        if old:
            old.stop()
            self._keep_downloads(old)
            shutil.rmtree(old.root)
        address = old.address if old else str(self.network[10 + len(self.hosts)])
        root = self.folder / name
        _run("cp", "-a", "--reflink=auto", base_image(self.cache), root)
        settings = mirrors.pip_settings()
        pip, npm = (self.cache / part for part in ("pip", "npm"))
        for made in (pip, npm, self._pool):
            made.mkdir(parents=True, exist_ok=True)
        # Hard links: hosts cannot share a folder, because apt locks it.
        for package in self._pool.glob("*.deb"):
            given = root / APT_CACHE / package.name
            if not given.exists():
                given.hardlink_to(package)
        machine = Machine(
            *(name, address, root, self.key),
            (
                *(f"{pip}:/root/.cache/pip", f"{npm}:/root/.npm"),
                *(f"{path}:{path}:ro" for path in _pip_folders(settings)),
                *(*self.binds, *binds),
            ),
        )
        self._settle(machine, settings)
        self.hosts[name] = machine
        machine.start()
        machine.wait()
        return machine

    @property
    def _pool(self) -> Path:
        """Packages that some host downloaded; a package's name has its version."""
        return self.cache / "debs/pool"

    def _keep_downloads(self, machine: Machine) -> None:
        for package in (machine.root / APT_CACHE).glob("*.deb"):
            kept = self._pool / package.name
            if not kept.exists():
                kept.hardlink_to(package)

    def _settle(self, machine: Machine, pip: dict[str, str]) -> None:
        """What an admin's installer would have set: name, address, key, mirrors."""
        root = machine.root
        (root / "etc/hostname").write_text(f"{machine.name}\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
        text = NETWORK.format(address=machine.address, gateway=self.gateway)
        (root / "etc/systemd/network/10-host0.network").write_text(text)
        (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        (root / "root/.ssh/authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        (root / "etc/apt/sources.list").write_text(_apt_lines())
        (root / "etc/apt/apt.conf.d/90keep").write_text(
            'Binary::apt::APT::Keep-Downloaded-Packages "true";\n'
            'APT::Keep-Downloaded-Packages "true";\nDPkg::Options:: "--force-unsafe-io";\n'
        )
        environment = dict(mirrors.proxies())
        if bundle := mirrors.ca_bundle():
            shutil.copy(bundle, root / CA_FILE[1:])
            for name in ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"):
                environment[name] = CA_FILE
        if registry := mirrors.npm_registry():
            environment["npm_config_registry"] = registry
        lines = "".join(f"{name}={value}\n" for name, value in environment.items())
        (root / "etc/environment").write_text(lines)
        kept = "".join(f"{name} = {value}\n" for name, value in pip.items())
        (root / "etc/pip.conf").write_text(f"[global]\n{kept}")

    def purge(self) -> None:
        """Stop everything, and leave nothing behind but the cache."""
        for machine in self.hosts.values():
            machine.stop()
            self._keep_downloads(machine)
        remove_leftovers(self.folder)


def _masquerade(verb: str, network: object) -> tuple[str, ...]:
    return (
        "-t",
        "nat",
        verb,
        "POSTROUTING",
        "-s",
        str(network),
        "!",
        "-d",
        str(network),
        "-j",
        "MASQUERADE",
    )


def _kill(nspawn: psutil.Process) -> None:
    """End a machine: its first process does not die with nspawn, and all others die with that."""
    family = [*nspawn.children(), nspawn]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, 20)


def remove_leftovers(folder: Path) -> None:
    """Whatever a run that was killed left: processes, bridge, rule, files."""
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "systemd-nspawn" and any(
            word.startswith(f"--directory={folder}/") for word in words
        ):
            _kill(process)
    network = folder / "network"
    if network.exists():
        subprocess.run(["iptables", *_masquerade("-D", network.read_text())], capture_output=True)
    # The kernel takes its time with the ends that belonged to a machine.
    links = json.loads(_run("ip", "-json", "link"))
    ends = [link["ifname"] for link in links if link["ifname"].startswith("vb-ct-")]
    for name in (*ends, BRIDGE):
        subprocess.run(["ip", "link", "del", name], capture_output=True)
    # The machines' Slurm made its folders in the cgroups of this kernel.
    for machine in folder.glob("*/"):
        for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{machine.name}"):
            for inner in (*sorted(top.rglob("*/"), reverse=True), top):
                with suppress(OSError):  # a process that has not ended yet
                    inner.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def _free_network() -> ipaddress.IPv4Network:
    used = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in json.loads(_run("ip", "-4", "-json", "route"))
        if route["dst"] != "default"
    ]
    return next(
        network
        for network in map(ipaddress.IPv4Network, SUBNETS)
        if not any(network.overlaps(other) for other in used)
    )


@contextmanager
def machines(cache: Path, binds: tuple[str, ...] = ()) -> Iterator[Machines]:
    """An empty set of hosts; gone afterwards, whatever happened."""
    if reason := why_not():
        pytest.skip(reason)
    from carme.local import packages

    needed = {
        "systemd-container": "machines with systemd",
        "debootstrap": "their system",
        "openssh-client": "Ansible's way in",
        "iptables": "their way out",
        "iproute2": "their network",
    }
    packages.install(needed, print, Path("/dev/null"))
    cache.mkdir(parents=True, exist_ok=True)
    if reason := _try_nspawn(cache):
        pytest.skip(reason)
    folder = cache / "running"
    with Path("/run/carme-machines.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_leftovers(folder)
        found = Machines(folder, cache, _free_network(), binds)
        try:
            found.prepare()
            yield found
        finally:
            if not os.environ.get("CARME_KEEP_MACHINES"):
                found.purge()
