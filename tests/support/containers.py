"""Real Apptainer and Docker for tests, or a reason why they cannot run here."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carme.errors import CarmeError
from carme.local import packages
from carme.system.apptainer import APT_PACKAGES, find_or_install
from carme.system.files import cache_dir
from carme_containers.apptainer_engine import ImageInspector
from carme_containers.build_environment import BuildUser


def real_apptainer() -> Path:
    """A working Apptainer; installed if needed, on Debian as root."""
    debian = os.geteuid() == 0 and Path("/etc/debian_version").exists()
    try:
        if debian:
            packages.install(dict(APT_PACKAGES), print, Path("/dev/null"))
        return find_or_install(cache_dir(), print)
    except CarmeError as error:
        if debian:
            raise
        pytest.skip(f"no Apptainer here: {error}")


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """The address of an engine with data, sockets and log in `folder` only."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a private Docker engine needs root on Debian")
    packages.install({"docker.io": "the Docker engine of the tests"}, print, Path("/dev/null"))
    dockerd = shutil.which("dockerd")
    assert dockerd
    socket = folder / "docker.sock"
    # No bridge and no firewall rules: the machine's network stays as it is.
    command = [dockerd, "--iptables=false", "--bridge=none", "--storage-driver=vfs"]
    command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "-H", f"unix://{socket}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not (socket.exists() and "API listen" in (folder / "log").read_text()):
            if process.poll() is not None or time.monotonic() > end:
                last = (folder / "log").read_text().strip().splitlines()[-1:]
                pytest.skip(f"no Docker engine can run here: {last}")
            time.sleep(0.2)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(60)
        # Docker leaves a network namespace mounted.
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def inside_as_nobody(apptainer: Path, image: Path) -> ImageInspector:
    """An inspector of the image as a user who neither built nor owns it."""
    nobody = pwd.getpwnam("nobody")
    user = BuildUser("nobody", nobody.pw_uid, nobody.pw_gid, switch=os.geteuid() == 0)
    scratch = cache_dir() / "build"
    scratch.mkdir(parents=True, exist_ok=True)
    return ImageInspector(apptainer, image, user, scratch)


def verify_as_nobody(apptainer: Path, image: Path) -> str:
    """The output of the image's own `verify`, run as such a user."""
    verified = inside_as_nobody(apptainer, image).verify()
    assert verified.passed, verified.output
    return verified.output
