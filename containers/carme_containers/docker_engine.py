"""Building with a Docker engine: the Dockerfile becomes an image there, its archive a SIF file."""

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound

from carme.errors import MissingError, UnavailableError
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.build_environment import INSIDE, SUITE, BuildEnvironment, prepare
from carme_containers.build_log import BuildLog
from carme_containers.build_user import BuildUser
from carme_containers.file_server import FileServer
from carme_containers.recipe import Recipe

DEBIAN = f"carme/debian:{SUITE}"
DEBIAN_DEFINITION = """Bootstrap: debootstrap
OSVersion: {suite}
MirrorURL: {mirror}
Include: ca-certificates
"""
# Apptainer's own files, and what the kernel or the machine provides while a container runs.
NOT_DEBIAN = (
    "./proc/*", "./sys/*", "./dev/*", "./mnt/*", "./tmp/*", "./.singularity.d", "./.exec", "./.run",
    "./.shell", "./.test", "./.singularity", "./singularity", "./environment",
)  # fmt: skip


class DockerEngine:
    """Drives the engine that DOCKER_HOST names; Apptainer makes the SIF file from its archive."""

    needs_parent_file = False

    def __init__(self, apptainer: ApptainerEngine) -> None:
        self.apptainer = apptainer
        try:
            _knock(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
            self.client = docker.from_env(timeout=600)
        except (DockerException, OSError) as error:
            raise UnavailableError(
                f"no Docker engine answers: {_short(error)}",
                "start one, or set DOCKER_HOST, or build with --engine apptainer",
            ) from None

    @property
    def version(self) -> str:
        """`docker 20.10.24, apptainer 1.4.5`."""
        return f"docker {self.client.version()['Version']}, {self.apptainer.version}"

    def make(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """The SIF file of the recipe, by way of an image in the engine."""
        del parent  # the engine keeps parents of its own
        try:
            tag = self._ensure(recipe, folder, log, user)
            archive = folder / "out" / "image.tar"
            log.say("saving the engine's image")
            with archive.open("wb") as file:
                for chunk in self.client.images.get(tag).save(named=True):
                    file.write(chunk)
        except DockerException as error:
            message = f"{recipe.id} could not be built: {_short(error)}"
            raise UnavailableError(message, f"the log is {log.path}") from None
        user.own(archive)
        made = folder / "out" / recipe.file
        source = f"docker-archive:{archive}"
        self.apptainer.run_build(["--fakeroot"], source, made, folder, None, log, user)
        archive.unlink()
        return made

    def _ensure(self, recipe: Recipe, folder: Path, log: BuildLog, user: BuildUser) -> str:
        """The tag of the recipe's image in the engine, built when it is not there."""
        tag = f"carme/{recipe.name}:{recipe.hash[:12]}"
        if self._has(tag):
            return tag
        dockerfile = recipe.folder / "Dockerfile"
        if not dockerfile.is_file():
            raise MissingError(f"recipe {recipe.name}: {dockerfile} is missing")
        arguments = dict(recipe.arguments)
        if recipe.parent:
            arguments["PARENT"] = self._ensure(recipe.parent, folder, log, user)
        elif "PARENT" in dockerfile.read_text(encoding="utf-8"):
            arguments["PARENT"] = self._debian(folder, log, user)
        context = folder / f"context-{recipe.name}"
        shutil.copytree(recipe.folder, context, ignore=shutil.ignore_patterns("__pycache__"))
        log.say(f"building {recipe.name} with Docker")
        with _machine_settings(context / ".build", self.apptainer.mirror):
            self._build(context, tag, arguments, log)
        shutil.rmtree(context)
        return tag

    def _build(self, context: Path, tag: str, arguments: dict[str, str], log: BuildLog) -> None:
        stream = self.client.api.build(
            path=str(context),
            tag=tag,
            buildargs=arguments,
            rm=True,
            forcerm=True,
            decode=True,
            # Engines without a bridge can build too, and the machine's loopback is in reach.
            network_mode="host",
        )
        for message in stream:
            for line in str(message.get("stream", "")).splitlines():
                log.line(line)
            if error := message.get("error"):
                log.line(f"error: {error}")
                text = f"{log.title} could not be built: {log.reason()}"
                raise UnavailableError(text, f"the log is {log.path}")

    def _debian(self, folder: Path, log: BuildLog, user: BuildUser) -> str:
        """A bare Debian in the engine: there may be no registry to pull one from."""
        if self._has(DEBIAN):
            return DEBIAN
        log.say("making a bare Debian for the engine")
        around = prepare(folder / "debian-mnt", self.apptainer.mirror)
        definition = DEBIAN_DEFINITION.format(suite=SUITE, mirror=around.mirror)
        (folder / "recipe/debian.def").write_text(definition)
        image = folder / "out" / "debian.sif"
        self.apptainer.run_build(["--fakeroot"], "debian.def", image, folder, around, log, user)
        archive = folder / "debian.tar"
        command = [str(self.apptainer.program), "-q", "exec", "--fakeroot", "--no-home"]
        command += ["--no-mount", "tmp,cwd", str(image), "tar", "--create", "--directory", "/"]
        command += ["--one-file-system", "--numeric-owner", "--anchored"]
        command += [f"--exclude={name}" for name in NOT_DEBIAN]
        with archive.open("wb") as file:
            run = subprocess.run(
                [*command, "."],
                stdout=file,
                stderr=subprocess.PIPE,
                check=False,
                cwd=folder,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder / "home")},
                **user.identity(),
            )
        if run.returncode:
            detail = run.stderr.decode(errors="replace").strip()[-300:]
            raise UnavailableError(f"a bare Debian could not be packed for Docker: {detail}")
        repository, _, tag = DEBIAN.partition(":")
        self.client.api.import_image(str(archive), repository=repository, tag=tag)
        archive.unlink()
        return DEBIAN

    def _has(self, tag: str) -> bool:
        try:
            self.client.images.get(tag)
        except ImageNotFound:
            return False
        return True


@contextmanager
def _machine_settings(folder: Path, mirror: str | None) -> Iterator[None]:
    """Fill `folder` with what a build takes from the machine, as files for the build context."""
    around = prepare(folder, mirror)
    shared = {inside.removeprefix(f"{INSIDE}/"): outside for outside, inside in around.binds[1:]}
    for name in shared:
        (folder / name).rmdir()
    with FileServer(shared) as server:
        (folder / "environment").write_text(_environment(around, server.address))
        yield


def _environment(around: BuildEnvironment, address: str) -> str:
    """A shell file that sets what the build needs; folders of the machine become pages of ours."""
    lines = []
    for key, value in around.environment.items():
        value = value.replace(f"file://{INSIDE}/pip-", f"{address}/pip-")
        if key == "PIP_FIND_LINKS":
            value = value.replace(f"{INSIDE}/pip-", f"{address}/pip-")
        lines.append(f"export {key}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _knock(host: str) -> None:
    """Fail early and cleanly when nobody listens; the SDK leaves its socket open in that case."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(host.removeprefix("unix://"))


def _short(error: Any) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
