"""Builds SIF files from recipes, once for each content, and verifies them."""

import json
import os
import shutil
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from carme.errors import UnavailableError
from carme.images.catalogue import BuildRecord, Image, file_digest
from carme.system.files import locked, write
from carme.system.programs import ProgressCallback
from carme.units import format_bytes, format_duration
from carme_containers.apptainer_engine import ImageInspector
from carme_containers.build_environment import BuildUser, build_user
from carme_containers.build_log import BuildLog
from carme_containers.recipe import Recipe


class Engine(Protocol):
    """Builds a SIF file from a recipe: Apptainer or Docker."""

    needs_parent_file: bool

    @property
    def version(self) -> str:
        """Program and version."""

    def build(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """Build the recipe that was copied to `folder`/recipe; returns the path of the SIF file."""


@dataclass(frozen=True)
class BuildResult:
    """A built image in the cache."""

    path: Path
    image: Image
    is_new: bool
    """Whether it was built just now; False if the cache had it."""


class Builder:
    """Builds images below `cache`, which has one file for each content of a recipe."""

    def __init__(
        self, engine: Engine, apptainer: Path, cache: Path, progress: ProgressCallback
    ) -> None:
        self.engine = engine
        self.apptainer = apptainer
        self.images = cache / "images"
        self.work = cache / "build"
        self.logs = cache / "logs"
        self.progress = progress

    def build(self, recipe: Recipe, force: bool = False) -> BuildResult:
        """The verified image of `recipe`; its parents are built first."""
        if not force and (cached := self.cached(recipe)):
            return cached
        parent = None
        if recipe.parent and self.engine.needs_parent_file:
            parent = self.build(recipe.parent)
        for folder in (self.images, self.work, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with locked(self.work / f"{recipe.name}-{recipe.version}.lock"):
            if not force and (cached := self.cached(recipe)):
                return cached  # another process built it in the meantime
            self._remove_abandoned(recipe)
            check_space(self.work, recipe)
            return self._build(recipe, parent)

    def _remove_abandoned(self, recipe: Recipe) -> None:
        """Remove the folders of killed builds of this image."""
        for folder in self.work.glob(f"{recipe.name}-{recipe.version}-*.sif.*"):
            pid = folder.name.rsplit(".", 1)[1]
            if not Path("/proc", pid).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def cached(self, recipe: Recipe) -> BuildResult | None:
        """The image if the cache has it, complete."""
        path = self.images / recipe.file
        try:
            image = Image.model_validate_json(path.with_suffix(".json").read_bytes())
            is_complete = path.stat().st_size == image.size_bytes
        except (OSError, ValueError):
            return None
        # Title and hints may have changed; that does not require a build.
        described = image.model_copy(update=description(recipe))
        return BuildResult(path, described, is_new=False) if is_complete else None

    def log_path(self, recipe: Recipe) -> Path:
        """The path of the log of a build."""
        return self.logs / f"image-{recipe.name}-{recipe.version}.log"

    def _build(self, recipe: Recipe, parent: BuildResult | None) -> BuildResult:
        started = time.monotonic()
        user = build_user()
        folder = self.work / f"{recipe.file}.{os.getpid()}"
        try:
            _stage(recipe, folder, user)
            with BuildLog(self.log_path(recipe), recipe.id, self.progress) as log:
                log.step(f"building; the log is {log.path}")
                parent_path = parent.path if parent else None
                file = self.engine.build(recipe, parent_path, folder, log, user)
                if user.switch:
                    file = take_file(file, folder / recipe.file)
                seconds = round(time.monotonic() - started, 1)
                image = self._inspect(recipe, parent, file, log, user, seconds)
            return self._store(recipe, file, image)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _inspect(
        self,
        recipe: Recipe,
        parent: BuildResult | None,
        file: Path,
        log: BuildLog,
        user: BuildUser,
        seconds: float,
    ) -> Image:
        """The index entry of the new image; UnavailableError if `verify` fails."""
        inspector = ImageInspector(self.apptainer, file, user, self.work)
        log.step("verifying")
        verified = inspector.verify()
        for line in ("--- verify ---", *verified.output.splitlines()):
            log.line(line)
        if not verified.passed:
            last = (verified.output.splitlines() or ["no message"])[-1]
            message = f"{recipe.id} was built, but its verify fails: {last}"
            raise UnavailableError(message, f"the log is {log.path}")
        return Image(
            name=recipe.name,
            version=recipe.version,
            **description(recipe),
            file=recipe.file,
            digest=file_digest(file),
            size_bytes=file.stat().st_size,
            recipe_hash=recipe.hash,
            labels=inspector.labels(),
            built=BuildRecord(
                at=datetime.now(UTC),
                engine=self.engine.version,
                seconds=seconds,
                arguments=recipe.arguments,
                parent=parent.image.digest if parent else None,
            ),
            verified=verified,
            packages=inspector.packages(),
        )

    def _store(self, recipe: Recipe, file: Path, image: Image) -> BuildResult:
        """Move the image into the cache; its description is last, because it makes it valid."""
        path = self.images / recipe.file
        file.chmod(0o644)
        file.replace(path)
        write(path.with_suffix(".json"), json.dumps(image.model_dump(mode="json")))
        duration = format_duration(image.built.seconds)
        self.progress(f"{recipe.id}: built in {duration}, {format_bytes(image.size_bytes)}")
        return BuildResult(path, image, is_new=True)


def _stage(recipe: Recipe, folder: Path, user: BuildUser) -> None:
    """Create the folder of one build, with a copy of the recipe that its user can read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(recipe.folder, folder / "recipe", ignore=ignored, symlinks=True)
    for path in (folder / "recipe").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    for name in ("out", "tmp", "scratch", "home"):
        (folder / name).mkdir()
        user.take_ownership(folder / name)


def take_file(file: Path, target: Path) -> Path:
    """`target`: a copy of the built file that this process owns, and the build's user does not.

    What the build left may be a link to a file that only root can read, or may still be written to.
    Raises UnavailableError unless it is a regular file with one name.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"{file} cannot be used: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise UnavailableError(f"{file} cannot be used: it is not a file of its own")
        with open(descriptor, "rb", closefd=False) as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy, 2**20)
    finally:
        os.close(descriptor)
    file.unlink()
    return target


def description(recipe: Recipe) -> dict[str, Any]:
    """The fields of an image that describe it in the spawn form."""
    names = ("title", "description", "tags", "applications", "gpu", "hints")
    return {name: getattr(recipe.manifest, name) for name in names}


def check_space(folder: Path, recipe: Recipe) -> None:
    """UnavailableError if a build would fill the disk."""
    needed = recipe.manifest.disk_mb * 2**20
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UnavailableError(
            f"{recipe.id} needs {format_bytes(needed)} in {folder}, {format_bytes(free)} are free",
            "carme images prune, or set CARME_CACHE to a larger disk",
        )
