"""Apptainer: builds images from definition files, runs commands in them, signs them."""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from carme.errors import ConfigError, MissingError, UnavailableError
from carme.images.catalogue import Packages, VerificationResult
from carme.system.programs import STANDARD_PATH, CommandResult, execute
from carme_containers.build_environment import BuildEnvironment, BuildUser, prepare
from carme_containers.build_log import BuildLog
from carme_containers.recipe import Recipe

# Sessions start as fast as from an unpacked image, and packing takes seconds. A file is a third
# larger than with zstd, which takes three times as long to unpack.
SQUASHFS = "-comp lz4 -b 64K"


class ApptainerEngine:
    """Runs `apptainer build` as the build user."""

    needs_parent_file = True

    def __init__(self, program: Path, mirror: str | None = None) -> None:
        self.program = program
        self.mirror = mirror

    @property
    def version(self) -> str:
        """`apptainer 1.4.5`."""
        result = execute([self.program, "version"])
        return f"{self.program.name} {result.stdout.strip() or 'of unknown version'}"

    def build(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """Build the recipe that was copied to `folder`/recipe; returns the path of the SIF file."""
        definition = folder / "recipe/image.def"
        if not definition.is_file():
            raise MissingError(f"recipe {recipe.name}: {recipe.folder / 'image.def'} is missing")
        environment = prepare(folder / "mnt", self.mirror)
        image = folder / "out" / recipe.file
        build_arguments = {
            "MIRROR": environment.mirror,
            **({"PARENT": str(parent)} if parent else {}),
        }
        # Apptainer rejects arguments that a definition does not use.
        text = definition.read_text(encoding="utf-8", errors="replace")
        used = {
            key: build_arguments[key]
            for key in build_arguments
            if re.search(rf"{{{{\s*{key}\s*}}}}", text)
        }
        # A separate /tmp: the build neither sees nor leaves files in the machine's.
        options = ["--fakeroot", "--bind", f"{folder / 'scratch'}:/tmp"]
        for source, mount_point in environment.binds:
            options += ["--bind", f"{source}:{mount_point}"]
        for key, value in {**recipe.arguments, **used}.items():
            options += ["--build-arg", f"{key}={value}"]
        self.run_build(options, "image.def", image, folder, environment, log, user)
        return image

    def run_build(
        self,
        options: list[str],
        source: str,
        image: Path,
        folder: Path,
        environment: BuildEnvironment | None,
        log: BuildLog,
        user: BuildUser,
    ) -> None:
        """Run `apptainer build` from any source that it accepts; UnavailableError if it fails."""
        variables = environment.variables if environment else {}
        environ = {
            "PATH": STANDARD_PATH,
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "APPTAINER_TMPDIR": str(folder / "tmp"),
            "APPTAINER_CACHEDIR": str(folder / "tmp"),
            **{key: value for key, value in variables.items() if "proxy" in key.lower()},
            # For the recipe's script only: neither in the recipe nor in the finished image.
            **{f"APPTAINERENV_{key}": value for key, value in variables.items()},
        }
        command = [str(self.program), "build", "--mksquashfs-args", SQUASHFS, *options]
        code = log.run([*command, str(image), source], environ, folder / "recipe", user)
        if code or not image.exists():
            message = f"{log.title} could not be built: {log.reason()}"
            raise UnavailableError(message, f"the log is {log.path}")


VERIFY = "/opt/carme/verify"
VERIFY_SECONDS = 900
OUTPUT_CHARACTERS = 4000


class ImageInspector:
    """Runs commands in one image as a normal user without the host's home and variables."""

    def __init__(self, apptainer: Path, image: Path, user: BuildUser, scratch: Path) -> None:
        self.apptainer = apptainer
        self.image = image
        self.user = user
        self.scratch = scratch

    def run(self, command: Sequence[str], timeout: float = 120) -> CommandResult:
        """Run `command` in the image."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch, prefix="inside-"))
        home, work = folder / "home", folder / "work"
        # --contain with a folder on disk: the default /tmp of 64 MB is too small for training.
        options = ["--contain", "--cleanenv", "--home", str(home), "--workdir", str(work)]
        try:
            for path in (home, work):
                path.mkdir()
                self.user.take_ownership(path)
            # Last: from here on the user, whose processes may outlive a build, can replace all.
            self.user.take_ownership(folder)
            return execute(
                [self.apptainer, "-s", "exec", *options, self.image, *command],
                timeout_seconds=timeout,
                env={"PATH": STANDARD_PATH, "HOME": str(home), "LANG": "C.UTF-8"},
                cwd=folder,
                user=self.user.identity,
            )
        except UnavailableError as error:
            return CommandResult("", error.message, 124)
        finally:
            # TemporaryDirectory would change the mode of what a link in the folder points to.
            shutil.rmtree(folder, ignore_errors=True)

    def verify(self) -> VerificationResult:
        """The result of the image's own `verify`."""
        started = time.monotonic()
        result = self.run([VERIFY], VERIFY_SECONDS)
        output = (result.stdout + result.stderr).strip()
        return VerificationResult(
            at=datetime.now(UTC).replace(microsecond=0),
            passed=result.returncode == 0,
            seconds=round(time.monotonic() - started, 1),
            output=output[-OUTPUT_CHARACTERS:],
        )

    def packages(self) -> Packages:
        """The system's and Python's packages in the image."""
        system = self.run(["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n"])
        python = self.run(["python3", "-m", "pip", "list", "--format", "json", "--no-index"])
        return Packages(system=parse_dpkg(system.stdout), python=parse_pip(python.stdout))

    def labels(self) -> dict[str, str]:
        """The labels from the recipe."""
        result = execute(
            [self.apptainer, "-s", "inspect", "--json", "--labels", self.image],
            env={"PATH": STANDARD_PATH, "HOME": "/nonexistent"},
            cwd="/",
            user=self.user.identity,
        )
        if result.returncode:
            raise UnavailableError(f"{self.image.name} cannot be read: {result.stderr.strip()}")
        return parse_labels(result.stdout)


def parse_dpkg(text: str) -> dict[str, str]:
    """name → version from dpkg-query's lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def parse_pip(text: str) -> dict[str, str]:
    """name → version from `pip list --format json`; empty if the image has no pip."""
    try:
        return {entry["name"]: entry["version"] for entry in json.loads(text)}
    except (ValueError, KeyError, TypeError):
        return {}


def parse_labels(text: str) -> dict[str, str]:
    """The labels in `apptainer inspect --json`."""
    try:
        labels = json.loads(text)["data"]["attributes"].get("labels") or {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {str(key): str(value) for key, value in sorted(labels.items())}


def sign(apptainer: Path, image: Path, key: Path) -> None:
    """Sign the file with the private `key`; an earlier signature is replaced."""
    if not key.is_file():
        raise ConfigError(f"images.signing_key: {key} does not exist")
    result = _sign_or_verify(apptainer, "sign", key, image)
    if result.returncode:
        raise UnavailableError(f"{image.name} could not be signed: {result.last_line}")


def signer(apptainer: Path, image: Path, key: Path) -> str | None:
    """The fingerprint of the public `key` if the complete image is signed with it, else None."""
    if not key.is_file():
        raise ConfigError(f"images.verify_key: {key} does not exist")
    result = _sign_or_verify(apptainer, "verify", key, image)
    return None if result.returncode else fingerprint(key)


def fingerprint(key: Path) -> str:
    """`sha256:` and 16 digits of the hash of a public key's text."""
    text = "".join(key.read_text(encoding="ascii", errors="replace").split())
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _sign_or_verify(apptainer: Path, command: str, key: Path, image: Path) -> CommandResult:
    return execute(
        [apptainer, "-q", command, "--all", "--key", key, image],
        timeout_seconds=600,
        env={"PATH": STANDARD_PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8"},
        cwd="/",
    )
