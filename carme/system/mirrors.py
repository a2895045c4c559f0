"""Package sources of this machine, as configured for apt, pip and npm.

Builds and downloads use the administrator's settings (a local mirror, a proxy, a company
certificate), so no file of the project names a host.
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carme.errors import MissingError
from carme.system.programs import execute

CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/etc/pki/tls/certs/ca-bundle.crt",  # RHEL and its rebuilds
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "timeout")


@dataclass(frozen=True)
class AptSource:
    """A package source of apt: address, suite and components, with its key if one is set."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""


def parse_apt_sources(text: str) -> list[AptSource]:
    """The binary-package sources in a `sources.list` or a deb822 `.sources` file."""
    if re.search(r"^Types\s*:", text, re.MULTILINE | re.IGNORECASE):
        return _parse_deb822(text)
    sources = []
    for line in text.splitlines():
        match = re.fullmatch(
            r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)(#.*)?", line.strip()
        )
        if match:
            options = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
            components = tuple(match[4].split())
            sources.append(AptSource(match[2], match[3], components, options.get("signed-by", "")))
    return sources


def _parse_deb822(text: str) -> list[AptSource]:
    sources = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and key:
                fields[key] += "\n" + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        # A key that is written out in the file has no path to pass on.
        signed_by = fields.get("signed-by", "")
        signed_by = signed_by if signed_by.startswith("/") else ""
        components = tuple(fields.get("components", "").split())
        sources += [
            AptSource(uri, suite, components, signed_by)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return sources


def apt_sources(etc: Path = Path("/etc/apt")) -> list[AptSource]:
    """Every source of this machine's apt."""
    parts = sorted((etc / "sources.list.d").glob("*"))
    sources = []
    for path in [etc / "sources.list", *parts]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            sources += parse_apt_sources(path.read_text(encoding="utf-8", errors="replace"))
    return sources


def debian_mirror(sources: Iterable[AptSource], override: str | None = None) -> AptSource:
    """The Debian archive that this machine uses; all suites are below one address."""
    suites = {"bookworm", "trixie", "forky", "stable", "testing", "unstable", "sid"}
    for source in sources:
        if source.suite in suites and "main" in source.components:
            uri = override or source.uri
            return AptSource(uri.rstrip("/"), source.suite, ("main",), source.signed_by)
    if override:
        return AptSource(override.rstrip("/"), "stable", ("main",))
    raise MissingError(
        "apt has no Debian mirror on this machine", "set images.debian_mirror in carme.toml"
    )


def parse_pip_config(listing: str) -> dict[str, str]:
    """pip's settings from `pip config list`: environment over [install] over [global]."""
    ranked: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(:env:|global|install)\.([\w-]+)=(.*)", line.strip())
        if not match:
            continue
        rank = {"global": 0, "install": 1, ":env:": 2}[match[1]]
        key = match[2].removeprefix("default-") if match[2] == "default-timeout" else match[2]
        try:
            value = str(ast.literal_eval(match[3]))
        except (SyntaxError, ValueError):
            value = match[3]
        if key not in ranked or rank >= ranked[key][0]:
            ranked[key] = (rank, " ".join(value.split()))
    return {key: value for key, (_, value) in ranked.items()}


def pip_settings() -> dict[str, str]:
    """pip's settings for package sources on this host."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = parse_pip_config(execute(command).stdout)
    return {key: value for key, value in settings.items() if key in PIP_SETTINGS}


def npm_registry(environ: Mapping[str, str] = os.environ) -> str:
    """The registry that npm uses on this host; empty without npm."""
    if not (npm := shutil.which("npm", path=environ.get("PATH"))):
        return ""
    registry = execute([npm, "config", "get", "registry"]).stdout.strip()
    return registry if registry.startswith(("http://", "https://", "file:")) else ""


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file with the certificates that this machine trusts."""
    for name in (environ.get("SSL_CERT_FILE"), *CA_BUNDLES):
        if name and Path(name).is_file():
            return Path(name)
    return None


def proxies(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The proxy variables of this environment, in both spellings that programs look for."""
    variables: dict[str, str] = {}
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        if value := environ.get(name) or environ.get(name.upper()):
            variables |= {name: value, name.upper(): value}
    return variables
