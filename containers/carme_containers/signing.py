"""Signatures inside SIF files, with a PEM key pair of the site: `apptainer sign` and `verify`."""

import hashlib
import subprocess
from pathlib import Path

from carme.errors import ConfigError, UnavailableError
from carme_containers.build_user import PATH


def sign(apptainer: Path, image: Path, key: Path) -> None:
    """Put the signature of the private `key` into the file; a signature of before is replaced."""
    if not key.is_file():
        raise ConfigError(f"images.signing_key: {key} is not there")
    run = _apptainer(apptainer, "sign", "--all", "--key", str(key), str(image))
    if run.returncode:
        raise UnavailableError(f"{image.name} could not be signed: {_last(run.stderr)}")


def signer(apptainer: Path, image: Path, key: Path) -> str | None:
    """The fingerprint of the public `key` when it vouches for all of the image, else None."""
    if not key.is_file():
        raise ConfigError(f"images.verify_key: {key} is not there")
    run = _apptainer(apptainer, "verify", "--all", "--key", str(key), str(image))
    return None if run.returncode else fingerprint(key)


def fingerprint(key: Path) -> str:
    """Short name of a public key: `sha256:` and 16 digits of its text."""
    text = "".join(key.read_text(encoding="ascii", errors="replace").split())
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _apptainer(apptainer: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(apptainer), "-q", *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=600,
        env={"PATH": PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8"},
        cwd="/",
    )


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
