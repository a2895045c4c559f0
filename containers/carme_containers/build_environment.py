"""What a build takes from the machine: mirrors, indexes, certificates, proxies.

They reach the recipe through the environment and one folder, /mnt, that is there during the build
only: the recipe names no host, and the finished image holds neither settings nor passwords.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from carme.system.mirrors import (
    AptSource,
    apt_sources,
    ca_bundle,
    debian_mirror,
    npm_registry,
    pip_settings,
    proxies,
)

INSIDE = "/mnt"
SUITE = "bookworm"
CERTIFICATES = f"{INSIDE}/ca.crt"
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
    """One build's share of the machine's settings."""

    mirror: str
    environment: dict[str, str]
    binds: tuple[tuple[Path, str], ...]


def prepare(stage: Path, mirror: str | None = None) -> BuildEnvironment:
    """Fill `stage`, the folder that the build sees as /mnt, and say what else it needs."""
    stage.mkdir(parents=True, exist_ok=True)
    sources = apt_sources()
    archive = debian_mirror(sources, mirror).uri
    (stage / "sources.list").write_text(image_sources(sources, archive))
    (stage / "apt.conf").write_text(_apt_conf())
    environment = {"APT_CONFIG": f"{INSIDE}/apt.conf", **proxies()}
    if bundle := ca_bundle():
        shutil.copyfile(bundle, stage / "ca.crt")
        environment |= dict.fromkeys(CERTIFICATE_VARIABLES, CERTIFICATES)
    if registry := npm_registry():
        environment["NPM_CONFIG_REGISTRY"] = registry
    settings, folders = map_pip(pip_settings())
    environment |= settings
    binds = [(stage, INSIDE)]
    for folder, inside in folders.items():
        # The mount point has to be there before the folder can be mounted on it.
        (stage / Path(inside).relative_to(INSIDE)).mkdir(parents=True, exist_ok=True)
        binds.append((folder, inside))
    return BuildEnvironment(archive, environment, tuple(binds))


def image_sources(sources: list[AptSource], archive: str) -> str:
    """The apt sources of the suite inside the image, with security updates where we have them."""
    lines = [f"deb {archive} {SUITE} main", f"deb {archive} {SUITE}-updates main"]
    lines += [
        f"deb {source.uri} {source.suite} main"
        for source in sources
        if source.suite == f"{SUITE}-security"
    ]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def map_pip(settings: dict[str, str]) -> tuple[dict[str, str], dict[Path, str]]:
    """pip's settings as variables, local folders replaced by where the build sees them."""
    environment = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    folders: dict[Path, str] = {}
    for key, value in settings.items():
        mapped = [_map_location(key, word, folders) for word in value.split()]
        variable = "DEFAULT_TIMEOUT" if key == "timeout" else key.upper().replace("-", "_")
        environment[f"PIP_{variable}"] = " ".join(mapped)
    return environment, folders


def _map_location(key: str, word: str, folders: dict[Path, str]) -> str:
    """One address; a local one becomes a folder to bind below /mnt."""
    if key not in {"index-url", "extra-index-url", "find-links"}:
        return word
    parts = urlsplit(word)
    if parts.scheme not in {"", "file"}:
        return word
    path = Path(unquote(parts.path))
    if not path.is_dir():
        return word
    # The pages of an index usually point to files beside it, so its parent has to come along.
    root = path if key == "find-links" or path.parent == Path("/") else path.parent
    inside = folders.setdefault(root, f"{INSIDE}/pip-{len(folders)}")
    seen = str(Path(inside) / path.relative_to(root))
    return seen if key == "find-links" else f"file://{seen}"


def _apt_conf() -> str:
    """apt's settings inside the build: our sources, our certificates, the machine's proxy."""
    lines = [
        f'Dir::Etc::SourceList "{INSIDE}/sources.list";',
        'Dir::Etc::SourceParts "/dev/null";',
        f'Acquire::https::CaInfo "{CERTIFICATES}";',
        'APT::Install-Recommends "false";',
        # A build that a power cut ends is thrown away, so dpkg need not wait for the disk.
        'DPkg::Options { "--force-unsafe-io"; };',
        'APT::Sandbox::User "root";',
        'Acquire::Languages "none";',
        'Acquire::Retries "3";',
    ]
    if shutil.which("apt-config"):
        command = ["apt-config", "dump", "--no-empty", "Acquire::http::Proxy"]
        command += ["Acquire::https::Proxy"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        lines += [line for line in run.stdout.splitlines() if "Proxy" in line]
    return "\n".join(lines) + "\n"
