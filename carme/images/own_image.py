"""Whether a session can start from a user's own image. Runs as the user, before submission."""

import os
import platform
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from carme.errors import DeniedError, InputError, UnavailableError
from carme.images.sif import read_sif
from carme.system.programs import STANDARD_PATH, CommandResult, execute

HUB_MAJOR = 6
CHECK_SECONDS = 60
"""For all checks of one image; less than the 75 s that the hub gives the helper."""
# A comma or a colon would end the path in an option of Apptainer, a line break in a script.
PATH_TEXT = re.compile(r"/[^\x00-\x1f\x7f:,\\\"'`$*?\[\]]{1,1000}")
REMEDY = "install in it: pip install 'jupyterhub=={hub}.*' 'jupyterlab==4.*'"


@dataclass(frozen=True)
class OwnImage:
    """An image file that a session can start from."""

    path: Path
    """Without links."""
    size_bytes: int
    jupyterhub: str
    """Its version in the image."""


def check_own_image(
    text: str,
    apptainer: Path | None,
    *,
    allowed: bool = True,
    verify_key: Path | None = None,
    hub_major: int = HUB_MAJOR,
) -> OwnImage:
    """The image at the path that a user typed; an error says what to do about it.

    Without Apptainer, only the file itself is checked, and `jupyterhub` is empty.
    """
    if not allowed:
        raise DeniedError("this site allows images of its catalogue only", "choose one of the list")
    path = real_path(text)
    sif = read_sif(path)
    machine = platform.machine()
    if sif.architecture not in {"", machine}:
        raise InputError(f"{path} is for {sif.architecture}, this machine is {machine}")
    deadline = time.monotonic() + CHECK_SECONDS
    if verify_key:
        if not apptainer:
            raise UnavailableError("signatures cannot be checked: there is no Apptainer")
        check_signature(path, apptainer, verify_key, deadline)
    version = check_launcher(path, apptainer, hub_major, deadline) if apptainer else ""
    return OwnImage(path, path.stat().st_size, version)


def real_path(text: str) -> Path:
    """The absolute path `text` without links, which could point elsewhere later."""
    path = os.path.realpath(text)
    if not text.startswith("/") or not PATH_TEXT.fullmatch(path):
        raise InputError(f"{text!r} is not the path of an image", "a plain path that starts with /")
    return Path(path)


def check_signature(path: Path, apptainer: Path, key: Path, deadline: float) -> None:
    """DeniedError unless the complete image is signed with `key`."""
    if _run([apptainer, "verify", "--all", "--key", key, path], deadline).returncode:
        raise DeniedError(
            f"{path} is not signed with this site's key", "ask the administrators to sign it"
        )


def check_launcher(path: Path, apptainer: Path, hub_major: int, deadline: float) -> str:
    """The version of the single-user server inside; an error says what to install."""
    remedy = REMEDY.format(hub=hub_major)
    base: list[str | Path] = [apptainer, "-q", "--nocolor", "exec", "--cleanenv", "--no-home", path]
    result = _run([*base, "jupyterhub-singleuser", "--version"], deadline)
    if result.returncode:
        if "not found" in result.stderr:
            raise InputError(f"{path} has no jupyterhub-singleuser on its PATH", remedy)
        raise InputError(
            f"{path}: jupyterhub-singleuser does not start in it: {result.last_line}", remedy
        )
    version = (result.stdout.strip().splitlines() or [""])[-1]
    if not version.startswith(f"{hub_major}."):
        raise InputError(f"{path} has JupyterHub {version}, this hub is {hub_major}.x", remedy)
    if _run([*base, "jupyter-lab", "--version"], deadline).returncode:
        raise InputError(f"{path} has no JupyterLab", remedy)
    return version


def _run(command: list[str | Path], deadline: float) -> CommandResult:
    environ = {"PATH": STANDARD_PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
    seconds = max(0.0, deadline - time.monotonic())
    try:
        return execute(command, timeout_seconds=seconds, env=environ, cwd="/")
    except UnavailableError:
        if time.monotonic() < deadline:
            raise  # the program could not be started
        raise UnavailableError(
            f"the image could not be checked within {CHECK_SECONDS} s",
            "try again; a large image is faster from a local disk",
        ) from None


def find_apptainer(configured: Path | None) -> Path | None:
    """The program that runs containers: the one in carme.toml, or else on PATH."""
    if configured:
        return configured
    for name in ("apptainer", "singularity"):
        if path := shutil.which(name):
            return Path(path)
    return None
