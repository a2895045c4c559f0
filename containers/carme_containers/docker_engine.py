"""Builds with a Docker engine: a Dockerfile becomes an image there, its archive a SIF file."""

import os
import secrets
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import docker
from docker.errors import DockerException, ImageNotFound

from carme.errors import MissingError, UnavailableError
from carme.system.programs import execute
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.build_environment import (
    BUILD_MOUNT,
    SUITE,
    BuildEnvironment,
    BuildUser,
    prepare,
)
from carme_containers.build_log import BuildLog
from carme_containers.recipe import Recipe

DEBIAN = f"carme/debian:{SUITE}"
DEBIAN_DEFINITION = """Bootstrap: debootstrap
OSVersion: {suite}
MirrorURL: {mirror}
Include: ca-certificates
"""
# Apptainer's own files, and what the kernel or the host provides while a container runs.
NOT_DEBIAN = (
    "./proc/*", "./sys/*", "./dev/*", "./mnt/*", "./tmp/*", "./.singularity.d", "./.exec", "./.run",
    "./.shell", "./.test", "./.singularity", "./singularity", "./environment",
)  # fmt: skip


class DockerEngine:
    """Builds with the engine at DOCKER_HOST; Apptainer creates the SIF file from its archive."""

    needs_parent_file = False

    def __init__(self, apptainer: ApptainerEngine) -> None:
        self.apptainer = apptainer
        try:
            _check_listening(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
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

    def build(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """Build the recipe in the engine, convert the image; returns the path of the SIF file."""
        del parent  # the engine stores its own parents
        try:
            tag = self._ensure(recipe, folder, log, user)
            archive = folder / "image.tar"  # not in a folder of the build's user, who could link it
            log.step("saving the engine's image")
            with archive.open("wb") as file:
                for chunk in self.client.images.get(tag).save(named=True):
                    file.write(chunk)
        except DockerException as error:
            message = f"{recipe.id} could not be built: {_short(error)}"
            raise UnavailableError(message, f"the log is {log.path}") from None
        archive.chmod(0o644)
        image = folder / "out" / recipe.file
        source = f"docker-archive:{archive}"
        self.apptainer.run_build(["--fakeroot"], source, image, folder, None, log, user)
        archive.unlink()
        return image

    def _ensure(self, recipe: Recipe, folder: Path, log: BuildLog, user: BuildUser) -> str:
        """The tag of the recipe's image in the engine, which is built if it does not exist."""
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
        log.step(f"building {recipe.name} with Docker")
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
            # Works in engines without a bridge, and the build reaches the host's loopback.
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
        """A minimal Debian in the engine: there may be no registry to pull one from."""
        if self._has(DEBIAN):
            return DEBIAN
        log.step("creating a minimal Debian for the engine")
        environment = prepare(folder / "debian-mnt", self.apptainer.mirror)
        definition = DEBIAN_DEFINITION.format(suite=SUITE, mirror=environment.mirror)
        (folder / "recipe/debian.def").write_text(definition)
        image = folder / "out" / "debian.sif"
        options = ["--fakeroot"]
        self.apptainer.run_build(options, "debian.def", image, folder, environment, log, user)
        archive = folder / "debian.tar"
        command = [str(self.apptainer.program), "-q", "exec", "--fakeroot", "--no-home"]
        command += ["--no-mount", "tmp,cwd", str(image), "tar", "--create", "--directory", "/"]
        command += ["--one-file-system", "--numeric-owner", "--anchored"]
        command += [f"--exclude={name}" for name in NOT_DEBIAN]
        with archive.open("wb") as file:
            result = execute(
                [*command, "."],
                stdout=file,
                timeout_seconds=None,
                cwd=folder,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder / "home")},
                user=user.identity,
            )
        if result.returncode:
            detail = result.stderr.strip()[-300:]
            raise UnavailableError(f"a minimal Debian could not be packed for Docker: {detail}")
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
    """Fill `folder`, a part of the build context, with the machine's settings."""
    environment = prepare(folder, mirror)
    shared = {
        mount_point.removeprefix(f"{BUILD_MOUNT}/"): source
        for source, mount_point in environment.binds[1:]
    }
    for name in shared:
        (folder / name).rmdir()
    with FileServer(shared) as server:
        (folder / "environment").write_text(_shell_variables(environment, server.address))
        yield


def _shell_variables(environment: BuildEnvironment, address: str) -> str:
    """A shell script that sets the build's variables; the file server replaces local folders."""
    lines = []
    for key, value in environment.variables.items():
        value = value.replace(f"file://{BUILD_MOUNT}/pip-", f"{address}/pip-")
        if key == "PIP_FIND_LINKS":
            value = value.replace(f"{BUILD_MOUNT}/pip-", f"{address}/pip-")
        lines.append(f"export {key}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _check_listening(host: str) -> None:
    """OSError if nothing listens on the socket: the SDK would leave its own socket open."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(host.removeprefix("unix://"))


def _short(error: Any) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class FileServer:
    """Serves folders as /SECRET/NAME/ on loopback, because Docker builds cannot mount folders.

    The random secret keeps other users of the machine out.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._secret = secrets.token_urlsafe(16)
        handler = partial(_Handler, folders=folders, secret=self._secret)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    @property
    def address(self) -> str:
        """The URL of the folders."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._secret}"

    def __enter__(self) -> "FileServer":
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self, *args: Any, folders: Mapping[str, Path], secret: str, **options: Any
    ) -> None:
        self._folders = folders
        self._secret = secret
        super().__init__(*args, **options)

    def translate_path(self, path: str) -> str:
        """The file of a URL; a file that does not exist for URLs outside the folders."""
        parts = unquote(urlsplit(path).path).split("/")[1:]
        if len(parts) < 2 or not secrets.compare_digest(parts[0].encode(), self._secret.encode()):
            return "/nonexistent"
        folder = self._folders.get(parts[1])
        if folder is None or ".." in parts:
            return "/nonexistent"
        return str(folder.joinpath(*[part for part in parts[2:] if part]))

    def log_message(self, *_: Any) -> None:
        """Print nothing: the build's log shows what was fetched."""
