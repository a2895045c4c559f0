"""A user's own image: is it fit to start a session from? Runs as the user, before submission."""

import os
import platform
import re
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.images.sif import read_sif

HUB_MAJOR = 6
CHECK_SECONDS = 60
"""For all checks of one image: the hub gives the helper 75 s, so this limit comes first."""
# A comma or a colon would end the path in an option of Apptainer's, a line break in a script.
PATH_TEXT = re.compile(r"/[^\x00-\x1f\x7f:,\\\"'`$*?\[\]]{1,1000}")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REMEDY = "install in it: pip install 'jupyterhub=={hub}.*' 'jupyterlab==4.*'"


@dataclass(frozen=True)
class OwnImage:
    """A file that a session can start from."""

    path: Path
    size_bytes: int
    jupyterhub: str
    """The version inside."""


def check_own_image(
    text: str,
    apptainer: Path | None,
    *,
    allowed: bool = True,
    verify_key: Path | None = None,
    hub_major: int = HUB_MAJOR,
) -> OwnImage:
    """The image at the path that a user typed, or an error that says what to do about it.

    Without Apptainer here, only the file itself is checked, and `jupyterhub` is empty.
    """
    if not allowed:
        raise DeniedError("this site starts images of its catalogue only", "choose one of the list")
    path = check_path(text)
    sif = read_sif(path)
    here = platform.machine()
    if sif.architecture not in {"", here}:
        raise InputError(f"{path} is for {sif.architecture}, this machine is {here}")
    ends = time.monotonic() + CHECK_SECONDS
    if verify_key:
        if not apptainer:
            raise UnavailableError("signatures cannot be checked here: there is no Apptainer")
        check_signature(path, apptainer, verify_key, ends)
    version = check_launcher(path, apptainer, hub_major, ends) if apptainer else ""
    return OwnImage(path, path.stat().st_size, version)


def check_path(text: str) -> Path:
    """The file that `text` names: absolute, a file, readable by whoever runs this."""
    if not PATH_TEXT.fullmatch(text):
        raise InputError(f"{text!r} is not the path of an image", "a plain path that starts with /")
    path = Path(os.path.normpath(text))
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be reached: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a file", "give the path of a .sif file")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: you may not read this file", f"chmod +r {path}, if it is yours")
    return path


def check_signature(path: Path, apptainer: Path, key: Path, ends: float) -> None:
    """DeniedError unless the holder of `key` signed all of the image."""
    run = _run([str(apptainer), "verify", "--all", "--key", str(key), str(path)], ends)
    if run.returncode:
        raise DeniedError(
            f"{path} is not signed with this site's key", "ask the administrators to sign it"
        )


def check_launcher(path: Path, apptainer: Path, hub_major: int, ends: float) -> str:
    """The version of the single-user server inside; an error says what to install."""
    remedy = REMEDY.format(hub=hub_major)
    base = [str(apptainer), "-q", "--nocolor", "exec", "--cleanenv", "--no-home", str(path)]
    run = _run([*base, "jupyterhub-singleuser", "--version"], ends)
    if run.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", run.stderr)
        why = (said.strip().splitlines() or ["no message"])[-1]
        if "not found" in run.stderr:
            raise InputError(f"{path} has no jupyterhub-singleuser on its PATH", remedy)
        raise InputError(f"{path}: jupyterhub-singleuser does not start in it: {why}", remedy)
    version = (run.stdout.strip().splitlines() or [""])[-1]
    if not version.startswith(f"{hub_major}."):
        raise InputError(f"{path} has JupyterHub {version}, this hub is {hub_major}.x", remedy)
    if _run([*base, "jupyter-lab", "--version"], ends).returncode:
        raise InputError(f"{path} has no JupyterLab", remedy)
    return version


def _run(command: list[str], ends: float) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=max(0.0, ends - time.monotonic()),
            env=environ,
            cwd="/",
        )
    except FileNotFoundError:
        raise MissingError(f"{command[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"the image could not be checked within {CHECK_SECONDS} s",
            "try again; a large image is quicker from a local disk",
        ) from None


def find_apptainer(configured: Path | None) -> Path | None:
    """The program to run containers with: what carme.toml names, else what is on PATH."""
    if configured:
        return configured
    for name in ("apptainer", "singularity"):
        if found := shutil.which(name):
            return Path(found)
    return None
