"""Looking into an image: run its `verify`, list its packages, read its labels."""

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from carme.errors import UnavailableError
from carme.images.catalogue import Packages, Verified
from carme_containers.build_user import PATH, BuildUser

VERIFY = "/opt/carme/verify"
VERIFY_SECONDS = 900
OUTPUT_CHARACTERS = 4000


class ImageInspector:
    """One image, entered as a normal user who brings nothing along: no home, no variables."""

    def __init__(self, apptainer: Path, image: Path, user: BuildUser, scratch: Path) -> None:
        self.apptainer = apptainer
        self.image = image
        self.user = user
        self.scratch = scratch

    def run(self, command: Sequence[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `command` in the image."""
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="inside-") as folder:
            home, work = Path(folder) / "home", Path(folder) / "work"
            for path in (Path(folder), home, work):
                path.mkdir(exist_ok=True)
                self.user.own(path)
            # --contain with a folder on disk: the default /tmp of 64 MB is too small to train in.
            options = ["--contain", "--cleanenv", "--home", str(home), "--workdir", str(work)]
            arguments = [str(self.apptainer), "-s", "exec", *options, str(self.image), *command]
            try:
                return subprocess.run(
                    arguments,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    check=False,
                    timeout=timeout,
                    env={"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8"},
                    cwd=folder,
                    **self.user.identity(),
                )
            except subprocess.TimeoutExpired:
                return subprocess.CompletedProcess(
                    arguments, 124, "", f"did not end within {timeout:.0f} s"
                )

    def verify(self) -> Verified:
        """What the image's own `verify` says."""
        started = time.monotonic()
        run = self.run([VERIFY], VERIFY_SECONDS)
        output = (run.stdout + run.stderr).strip()
        return Verified(
            at=datetime.now(UTC).replace(microsecond=0),
            passed=run.returncode == 0,
            seconds=round(time.monotonic() - started, 1),
            output=output[-OUTPUT_CHARACTERS:],
        )

    def packages(self) -> Packages:
        """The packages of the system and of Python inside."""
        system = self.run(["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n"])
        python = self.run(["python3", "-m", "pip", "list", "--format", "json", "--no-index"])
        return Packages(system=parse_dpkg(system.stdout), python=parse_pip(python.stdout))

    def labels(self) -> dict[str, str]:
        """The labels that the recipe gave the image."""
        arguments = [str(self.apptainer), "-s", "inspect", "--json", "--labels", str(self.image)]
        run = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": PATH, "HOME": "/nonexistent"},
            cwd="/",
            **self.user.identity(),
        )
        if run.returncode:
            raise UnavailableError(f"{self.image.name} cannot be read: {run.stderr.strip()}")
        return parse_labels(run.stdout)


def parse_dpkg(text: str) -> dict[str, str]:
    """name → version from dpkg-query's lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def parse_pip(text: str) -> dict[str, str]:
    """name → version from `pip list --format json`; nothing if there is no pip inside."""
    try:
        return {entry["name"]: entry["version"] for entry in json.loads(text)}
    except (ValueError, KeyError, TypeError):
        return {}


def parse_labels(text: str) -> dict[str, str]:
    """The labels in `apptainer inspect --json`."""
    try:
        found = json.loads(text)["data"]["attributes"].get("labels") or {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {str(key): str(value) for key, value in sorted(found.items())}
