"""Whether a session can start from a user's own image. Runs as the user, before submission.

The check reads the file and starts nothing in it: it runs on the hub's host, where no program of a
user may run. What only a start can show, the launcher reports in the session's log.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from carme.errors import DeniedError, InputError, UnavailableError
from carme.images.sif import Sif, read_sif
from carme.images.squashfs import has_name, matching_names
from carme.system.programs import STANDARD_PATH, execute

HUB_MAJOR = 6
CHECK_SECONDS = 60
"""For the check of one image; less than the 75 s that the hub gives the helper."""
# A comma or a colon would end the path in an option of Apptainer, a line break in a script.
IMAGE_PATH_PATTERN = r"^/[^\x00-\x1f\x7f:,\\\"'`$*?\[\]]{1,1000}$"
REMEDY = "install in it: pip install 'jupyterhub=={hub}.*' 'jupyterlab==4.*'"
_HUB_PACKAGE = r"jupyterhub-[0-9][0-9A-Za-z.]{0,40}\.(?:dist|egg)-info"


@dataclass(frozen=True)
class OwnImage:
    """An image file that a session can start from."""

    path: Path
    """Without links."""
    size_bytes: int
    jupyterhub: str
    """Its version in the image; empty if it cannot be read without starting the image."""


def check_own_image(
    text: str,
    apptainer: Path | None,
    *,
    allowed: bool = True,
    verify_key: Path | None = None,
    hub_major: int = HUB_MAJOR,
) -> OwnImage:
    """The image at the path that a user typed; an error says what to do about it.

    Apptainer checks the signature; without `verify_key` it is not needed.
    """
    if not allowed:
        raise DeniedError("this site allows images of its catalogue only", "choose one of the list")
    path = real_path(text)
    sif = read_sif(path)
    machine = platform.machine()
    if sif.architecture not in {"", machine}:
        raise InputError(f"{path} is for {sif.architecture}, this machine is {machine}")
    if sif.encrypted:
        raise InputError(f"{path} is encrypted, and a session has no key", "build it without")
    if verify_key:
        if not apptainer:
            raise UnavailableError("signatures cannot be checked: there is no Apptainer")
        check_signature(path, apptainer, verify_key)
    return OwnImage(path, sif.file_bytes, check_programs(path, sif, hub_major))


def real_path(text: str) -> Path:
    """The absolute path `text` without links, which could point elsewhere later."""
    path = os.path.realpath(text)
    if not text.startswith("/") or not re.fullmatch(IMAGE_PATH_PATTERN, path):
        raise InputError(f"{text!r} is not the path of an image", "a plain path that starts with /")
    return Path(path)


def check_signature(path: Path, apptainer: Path, key: Path) -> None:
    """DeniedError unless the complete image is signed with `key`. Starts nothing in the image."""
    result = execute(
        [str(apptainer), "verify", "--all", "--key", str(key), str(path)],
        # Its output is not read: it repeats texts of the image, which may be of any length.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": STANDARD_PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"},
        timeout_seconds=CHECK_SECONDS,
        cwd="/",
    )
    if result.returncode:
        raise DeniedError(
            f"{path} is not signed with this site's key", "ask the administrators to sign it"
        )


def check_programs(path: Path, sif: Sif, hub_major: int) -> str:
    """The version of the single-user server in the image; an error says what to install.

    Empty if the names of its files cannot be read, or if no name holds the version.
    """
    names = sif.directories
    if names is None:
        return ""
    remedy = REMEDY.format(hub=hub_major)
    if not has_name(names, "jupyterhub-singleuser"):
        raise InputError(f"{path} has no jupyterhub-singleuser on its PATH", remedy)
    packages = matching_names(names, _HUB_PACKAGE)
    versions = sorted(name.split("-")[1].rpartition(".")[0] for name in packages)
    fitting = [version for version in versions if version.startswith(f"{hub_major}.")]
    if versions and not fitting:
        raise InputError(f"{path} has JupyterHub {versions[-1]}, this hub is {hub_major}.x", remedy)
    if not has_name(names, "jupyter-lab"):
        raise InputError(f"{path} has no JupyterLab", remedy)
    return fitting[-1] if fitting else ""


def find_apptainer(configured: Path | None) -> Path | None:
    """The program that runs containers: the one in carme.toml, or else on PATH."""
    if configured:
        return configured
    for name in ("apptainer", "singularity"):
        if path := shutil.which(name):
            return Path(path)
    return None
