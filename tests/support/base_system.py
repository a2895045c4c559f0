"""The bare Debian with systemd and sshd from which every test host starts, built with debootstrap.

The package sources of the hosts come from this machine's own settings.
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from carme.system import mirrors
from carme.system.programs import run

SUITE = "bookworm"
INCLUDE = (
    *("systemd", "systemd-sysv", "dbus", "python3", "iproute2", "openssh-server"),
    *("ca-certificates", "procps", "sudo", "libpam-systemd"),
)
# Ansible's user. Its home is not below /home, over which a shared folder is mounted.
ADMIN = "admin"
ADMIN_HOME = "var/lib/admin"
# Environment variables that configure the access to packages.
SUDOERS = f"Defaults:{ADMIN} !env_reset, always_set_home\n{ADMIN} ALL=(ALL) NOPASSWD: ALL\n"
CA_FILE = "/etc/ssl/carme-test-ca.crt"
# nspawn mounts the v1 controllers read-only, but slurmd creates job cgroups in them. nspawn also
# mounts its own boot ID over the kernel's. A unit with ProtectKernelTunables does not see it, so
# prolog and exporter would disagree on the boot.
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


def why_not() -> str:
    """The reason why systemd-nspawn cannot run here; empty if it can."""
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


def try_nspawn(cache: Path) -> str:
    """The reason why a trial run of nspawn fails here; empty if it works."""
    argv = [
        *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"),
        *("--volatile=yes", f"--directory={base_image(cache)}", "/usr/bin/true"),
    ]
    result = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return f"systemd-nspawn does not run here: {result.stderr[-300:]}" if result.returncode else ""


def base_image(cache: Path) -> Path:
    """The folder of a bare Debian with systemd and sshd; built once."""
    key = hashlib.sha256(
        json.dumps([SUITE, INCLUDE, CGROUPS, CGROUPS_SCRIPT, ADMIN_HOME, SUDOERS]).encode()
    ).hexdigest()[:12]
    folder = cache / f"base-{key}"
    if folder.exists():
        return folder
    partial = cache / f".base-{key}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    source = mirrors.debian_mirror(mirrors.apt_sources())
    downloads = cache / "debs/base"
    downloads.mkdir(parents=True, exist_ok=True)
    argv = [
        *("debootstrap", "--variant=minbase", f"--include={','.join(INCLUDE)}"),
        *(f"--cache-dir={downloads}", SUITE, str(partial), source.uri),
    ]
    run(argv, timeout_seconds=900)
    (partial / "etc/systemd/system/test-cgroups.service").write_text(CGROUPS)
    script = partial / "usr/local/sbin/test-cgroups"
    script.write_text(CGROUPS_SCRIPT)
    script.chmod(0o755)
    run(["chroot", partial, "systemctl", "enable", "test-cgroups", "systemd-networkd", "ssh"])
    run(["chroot", partial, "systemctl", "mask", "getty.target", "console-getty.service"])
    home = ("--create-home", f"--home-dir=/{ADMIN_HOME}")
    run(["chroot", partial, "useradd", "--shell=/bin/bash", *home, ADMIN])
    (partial / "etc/sudoers.d/admin").write_text(SUDOERS)
    (partial / "etc/machine-id").write_text("")
    partial.rename(folder)
    return folder


def reach_packages(root: Path) -> list[str]:
    """Copy this machine's mirrors into a host's files; returns the local folders that they name."""
    pip = mirrors.pip_settings()
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
    pip_settings = "".join(f"{name} = {value}\n" for name, value in pip.items())
    (root / "etc/pip.conf").write_text(f"[global]\n{pip_settings}")
    return _pip_folders(pip)


def _apt_lines() -> str:
    """apt source lines of Debian's suites with this machine's mirror."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    return "".join(
        f"deb [signed-by={keyring}] {source.uri} {source.suite} {' '.join(source.components)}\n"
        for source in mirrors.apt_sources()
        if source.suite.startswith(SUITE) and "main" in source.components
    )


def _pip_folders(settings: dict[str, str]) -> list[str]:
    """Folders of this machine that pip's settings name."""
    values = " ".join(settings.values()).split()
    paths = {word.removeprefix("file://") for word in values if word.startswith(("file:///", "/"))}
    tops = {Path(path) for path in paths if Path(path).is_dir()}
    # The files of an index may be beside its `simple` folder.
    return sorted({str(top.parent if top.name == "simple" else top) for top in tops})
