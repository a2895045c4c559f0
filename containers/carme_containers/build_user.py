"""The Unix user that builds images: never root, because a recipe runs what it downloads."""

import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from carme.errors import MissingError
from carme.system.files import locked

NAME = "carme-build"
HOME = "/var/lib/carme-build"
SUBORDINATE_IDS = 65536
FIRST_SUBORDINATE_ID = 524288  # above the ranges that useradd gives to people
_LOCK = Path("/run/carme-build-user.lock")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class BuildUser:
    """Who builds: `carme-build` when we are root, else ourselves."""

    name: str
    uid: int
    gid: int
    switch: bool

    def identity(self) -> dict[str, Any]:
        """Arguments for subprocess that run a command as this user."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.switch:
            shutil.chown(path, self.uid, self.gid)


def build_user() -> BuildUser:
    """The user to build as; made with its subordinate ids when root asks for the first time."""
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid())
        return BuildUser(me.pw_name, me.pw_uid, me.pw_gid, switch=False)
    with locked(_LOCK):  # two builds may begin at once
        return _ensure_user()


def _ensure_user() -> BuildUser:
    try:
        user = pwd.getpwnam(NAME)
    except KeyError:
        # It needs a home: Apptainer mounts the one from passwd as root's inside a build.
        command = ["useradd", "--system", "--user-group", "--create-home", "--skel", "/dev/null"]
        command += ["--home-dir", HOME, "--shell", "/usr/sbin/nologin", NAME]
        _run(command)
        user = pwd.getpwnam(NAME)
    for path, option in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        table = Path(path).read_text() if Path(path).exists() else ""
        if not re.search(rf"^({NAME}|{user.pw_uid}):", table, re.MULTILINE):
            first = free_range(table)
            _run(["usermod", option, f"{first}-{first + SUBORDINATE_IDS - 1}", NAME])
    return BuildUser(NAME, user.pw_uid, user.pw_gid, switch=True)


def remove_build_user() -> None:
    """Undo `build_user`, unless a build is running; userdel drops the subordinate ids too."""
    with locked(_LOCK):
        exists = any(entry.pw_name == NAME for entry in pwd.getpwall())
        is_building = any(p.info["username"] == NAME for p in psutil.process_iter(["username"]))
        if exists and not is_building:
            _run(["userdel", NAME])
            shutil.rmtree(HOME, ignore_errors=True)


def free_range(table: str) -> int:
    """The first id above every range in a subuid table."""
    ends = [FIRST_SUBORDINATE_ID]
    for line in table.splitlines():
        parts = line.split(":")
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            ends.append(int(parts[1]) + int(parts[2]))
    return max(ends)


def _run(command: list[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingError(f"{command[0]} is not installed") from None
    if run.returncode:
        raise MissingError(f"{command[0]} failed: {run.stderr.strip()}")
