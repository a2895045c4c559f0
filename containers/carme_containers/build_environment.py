"""The environment of a build: a Unix user, and the machine's mirrors, certificates and proxies.

The settings reach the recipe through variables and the folder /mnt, both during the build only: the
recipe names no host, and the finished image has neither settings nor passwords of the machine.
"""

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil

from carme.system.files import locked
from carme.system.mirrors import (
    AptSource,
    apt_sources,
    ca_bundle,
    debian_mirror,
    npm_registry,
    pip_settings,
    proxies,
)
from carme.system.programs import execute, run

BUILD_MOUNT = "/mnt"
SUITE = "bookworm"
CERTIFICATES = f"{BUILD_MOUNT}/ca.crt"
CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
)


@dataclass(frozen=True)
class BuildEnvironment:
    """Settings of the machine for one build."""

    mirror: str
    variables: dict[str, str]
    binds: tuple[tuple[Path, str], ...]


def prepare(stage: Path, mirror: str | None = None) -> BuildEnvironment:
    """Fill `stage`, which the build sees as /mnt; returns the other settings of the build."""
    stage.mkdir(parents=True, exist_ok=True)
    sources = apt_sources()
    archive = debian_mirror(sources, mirror).uri
    (stage / "sources.list").write_text(image_sources(sources, archive))
    (stage / "apt.conf").write_text(_apt_conf())
    variables = {"APT_CONFIG": f"{BUILD_MOUNT}/apt.conf", **proxies()}
    if bundle := ca_bundle():
        shutil.copyfile(bundle, stage / "ca.crt")
        variables |= dict.fromkeys(CERTIFICATE_VARIABLES, CERTIFICATES)
    if registry := npm_registry():
        variables["NPM_CONFIG_REGISTRY"] = registry
    settings, folders = map_pip(pip_settings())
    variables |= settings
    binds = [(stage, BUILD_MOUNT)]
    for folder, mount_point in folders.items():
        # A mount point must exist before a folder can be mounted on it.
        (stage / Path(mount_point).relative_to(BUILD_MOUNT)).mkdir(parents=True, exist_ok=True)
        binds.append((folder, mount_point))
    return BuildEnvironment(archive, variables, tuple(binds))


def image_sources(sources: list[AptSource], archive: str) -> str:
    """The apt sources for the image, with security updates if this machine has a source of them."""
    lines = [f"deb {archive} {SUITE} main", f"deb {archive} {SUITE}-updates main"]
    lines += [
        f"deb {source.uri} {source.suite} main"
        for source in sources
        if source.suite == f"{SUITE}-security"
    ]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def map_pip(settings: dict[str, str]) -> tuple[dict[str, str], dict[Path, str]]:
    """pip's settings as variables, and the local folders that they use with their mount points."""
    variables = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    folders: dict[Path, str] = {}
    for key, value in settings.items():
        mapped = [_map_location(key, location, folders) for location in value.split()]
        variable = "DEFAULT_TIMEOUT" if key == "timeout" else key.upper().replace("-", "_")
        variables[f"PIP_{variable}"] = " ".join(mapped)
    return variables, folders


def _map_location(key: str, location: str, folders: dict[Path, str]) -> str:
    """An address as the build sees it; a local folder is added to `folders`."""
    if key not in {"index-url", "extra-index-url", "find-links"}:
        return location
    parts = urlsplit(location)
    if parts.scheme not in {"", "file"}:
        return location
    path = Path(unquote(parts.path))
    if not path.is_dir():
        return location
    # The pages of an index usually link to files beside it, so its parent is mounted.
    root = path if key == "find-links" or path.parent == Path("/") else path.parent
    mount_point = folders.setdefault(root, f"{BUILD_MOUNT}/pip-{len(folders)}")
    mapped = str(Path(mount_point) / path.relative_to(root))
    return mapped if key == "find-links" else f"file://{mapped}"


def _apt_conf() -> str:
    """apt's settings in the build: sources, certificates, the machine's proxy."""
    lines = [
        f'Dir::Etc::SourceList "{BUILD_MOUNT}/sources.list";',
        'Dir::Etc::SourceParts "/dev/null";',
        f'Acquire::https::CaInfo "{CERTIFICATES}";',
        'APT::Install-Recommends "false";',
        # A build that a power cut ends is discarded, so dpkg need not sync the disk.
        'DPkg::Options { "--force-unsafe-io"; };',
        'APT::Sandbox::User "root";',
        'Acquire::Languages "none";',
        'Acquire::Retries "3";',
    ]
    if shutil.which("apt-config"):
        command = ["apt-config", "dump", "--no-empty", "Acquire::http::Proxy"]
        command += ["Acquire::https::Proxy"]
        lines += [line for line in execute(command).stdout.splitlines() if "Proxy" in line]
    return "\n".join(lines) + "\n"


BUILD_USER = "carme-build"
BUILD_HOME = "/var/lib/carme-build"
SUBORDINATE_IDS = 65536
FIRST_SUBORDINATE_ID = 524288  # above the ranges that useradd assigns
_LOCK = Path("/run/carme-build-user.lock")


@dataclass(frozen=True)
class BuildUser:
    """The user that builds: `carme-build` if this process is root, else its own user.

    Never root, because a recipe runs what it downloads.
    """

    name: str
    uid: int
    gid: int
    switch: bool

    @property
    def identity(self) -> tuple[int, int] | None:
        """The uid and gid to change to; None if this process is already the user."""
        return (self.uid, self.gid) if self.switch else None

    def take_ownership(self, path: Path) -> None:
        """Make this user the owner of a file or folder, never of what a link points to."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def build_user() -> BuildUser:
    """The user to build as. Root creates it, with its subordinate ids, if it does not exist."""
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid())
        return BuildUser(me.pw_name, me.pw_uid, me.pw_gid, switch=False)
    with locked(_LOCK):  # two builds may start at the same time
        return _ensure_user()


def _ensure_user() -> BuildUser:
    try:
        user = pwd.getpwnam(BUILD_USER)
    except KeyError:
        # It needs a home: in a build, Apptainer mounts the home from passwd as root's.
        command = ["useradd", "--system", "--user-group", "--create-home", "--skel", "/dev/null"]
        run([*command, "--home-dir", BUILD_HOME, "--shell", "/usr/sbin/nologin", BUILD_USER])
        user = pwd.getpwnam(BUILD_USER)
    for path, option in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        table = Path(path).read_text() if Path(path).exists() else ""
        if not re.search(rf"^({BUILD_USER}|{user.pw_uid}):", table, re.MULTILINE):
            first_id = free_range(table)
            run(["usermod", option, f"{first_id}-{first_id + SUBORDINATE_IDS - 1}", BUILD_USER])
    return BuildUser(BUILD_USER, user.pw_uid, user.pw_gid, switch=True)


def remove_build_user() -> None:
    """Remove the user with its subordinate ids, unless a build is running."""
    with locked(_LOCK):
        exists = any(entry.pw_name == BUILD_USER for entry in pwd.getpwall())
        is_building = any(
            p.info["username"] == BUILD_USER for p in psutil.process_iter(["username"])
        )
        if exists and not is_building:
            run(["userdel", BUILD_USER])
            shutil.rmtree(BUILD_HOME, ignore_errors=True)


def free_range(table: str) -> int:
    """The first id above every range in a subuid table."""
    ends = [FIRST_SUBORDINATE_ID]
    for line in table.splitlines():
        parts = line.split(":")
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            ends.append(int(parts[1]) + int(parts[2]))
    return max(ends)
