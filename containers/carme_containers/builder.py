"""Turns recipes into SIF files, once for each content; what is verified and whole is kept."""

import json
import os
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from carme.errors import UnavailableError
from carme.images.catalogue import Built, Image, file_digest
from carme.system.files import locked
from carme.units import format_bytes, format_duration
from carme_containers.build_log import BuildLog, Progress
from carme_containers.build_user import BuildUser, build_user
from carme_containers.image_inspector import ImageInspector
from carme_containers.recipe import Recipe

IGNORED = shutil.ignore_patterns("__pycache__")


class Engine(Protocol):
    """What makes a SIF file from a recipe: Apptainer or Docker."""

    needs_parent_file: bool

    @property
    def version(self) -> str:
        """Program and version."""

    def make(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """The SIF file of the recipe that was copied to `folder`/recipe; `folder` is scratch."""


@dataclass(frozen=True)
class BuildResult:
    """A built image in the cache."""

    path: Path
    image: Image
    fresh: bool
    """Whether it was built now; false means it was there already."""


class Builder:
    """Builds below `cache`; everything there is kept by content, so nothing is built twice."""

    def __init__(self, engine: Engine, apptainer: Path, cache: Path, progress: Progress) -> None:
        self.engine = engine
        self.apptainer = apptainer
        self.images = cache / "images"
        self.work = cache / "build"
        self.logs = cache / "logs"
        self.progress = progress

    def build(self, recipe: Recipe, force: bool = False) -> BuildResult:
        """The image of `recipe`, its parents built before it; verified, or an error."""
        if not force and (ready := self.ready(recipe)):
            return ready
        parent = None
        if recipe.parent and self.engine.needs_parent_file:
            parent = self.build(recipe.parent)
        for folder in (self.images, self.work, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with locked(self.work / f"{recipe.name}-{recipe.version}.lock"):
            if not force and (ready := self.ready(recipe)):
                return ready  # another process built it while we waited
            self._clear_up(recipe)
            check_space(self.work, recipe)
            return self._build(recipe, parent)

    def _clear_up(self, recipe: Recipe) -> None:
        """Remove what builds of this image that were killed have left."""
        for left in self.work.glob(f"{recipe.name}-{recipe.version}-*.sif.*"):
            builder = left.name.rsplit(".", 1)[1]
            if not Path("/proc", builder).exists():
                shutil.rmtree(left, ignore_errors=True)

    def ready(self, recipe: Recipe) -> BuildResult | None:
        """The image when the cache has it whole."""
        path = self.images / recipe.file
        try:
            image = Image.model_validate_json(path.with_suffix(".json").read_bytes())
            whole = path.stat().st_size == image.size_bytes
        except (OSError, ValueError):
            return None
        # Title and hints may have changed since; they are no reason to build again.
        described = image.model_copy(update=description(recipe))
        return BuildResult(path, described, fresh=False) if whole else None

    def log_path(self, recipe: Recipe) -> Path:
        """Where the log of a build is."""
        return self.logs / f"image-{recipe.name}-{recipe.version}.log"

    def _build(self, recipe: Recipe, parent: BuildResult | None) -> BuildResult:
        started = time.monotonic()
        user = build_user()
        folder = self.work / f"{recipe.file}.{os.getpid()}"
        try:
            _stage(recipe, folder, user)
            with BuildLog(self.log_path(recipe), recipe.id, self.progress) as log:
                log.say(f"building; the log is {log.path}")
                parent_path = parent.path if parent else None
                made = self.engine.make(recipe, parent_path, folder, log, user)
                seconds = round(time.monotonic() - started, 1)
                image = self._inspect(recipe, parent, made, log, user, seconds)
            return self._keep(recipe, made, image)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _inspect(
        self,
        recipe: Recipe,
        parent: BuildResult | None,
        made: Path,
        log: BuildLog,
        user: BuildUser,
        seconds: float,
    ) -> Image:
        """Everything the index says about the new image; a failing `verify` is an error."""
        inside = ImageInspector(self.apptainer, made, user, self.work)
        log.say("verifying")
        verified = inside.verify()
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
            digest=file_digest(made),
            size_bytes=made.stat().st_size,
            recipe_hash=recipe.hash,
            labels=inside.labels(),
            built=Built(
                at=datetime.now(UTC).replace(microsecond=0),
                engine=self.engine.version,
                seconds=seconds,
                arguments=recipe.arguments,
                parent=parent.image.digest if parent else None,
            ),
            verified=verified,
            packages=inside.packages(),
        )

    def _keep(self, recipe: Recipe, made: Path, image: Image) -> BuildResult:
        """Move the finished image into the cache, the description last: it makes it valid."""
        path = self.images / recipe.file
        if os.geteuid() == 0:
            os.chown(made, 0, 0)
        made.chmod(0o644)
        made.replace(path)
        write_atomically(path.with_suffix(".json"), json.dumps(image.model_dump(mode="json")))
        spent = format_duration(image.built.seconds)
        self.progress(f"{recipe.id}: built in {spent}, {format_bytes(image.size_bytes)}")
        return BuildResult(path, image, fresh=True)


def _stage(recipe: Recipe, folder: Path, user: BuildUser) -> None:
    """A folder for this one build, with a copy of the recipe that its user can read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(recipe.folder, folder / "recipe", ignore=IGNORED)
    for path in (folder / "recipe").rglob("*"):
        path.chmod(0o755)
    for name in ("out", "tmp", "scratch", "home"):
        (folder / name).mkdir()
        user.own(folder / name)


def description(recipe: Recipe) -> dict[str, Any]:
    """What the form says about an image: words and needs, not content."""
    manifest = recipe.manifest
    return {
        "title": manifest.title,
        "description": manifest.description,
        "tags": manifest.tags,
        "applications": manifest.applications,
        "gpu": manifest.gpu,
        "hints": manifest.hints,
    }


def check_space(folder: Path, recipe: Recipe) -> None:
    """Refuse to start a build that would fill the disk."""
    need = recipe.manifest.disk_mb * 2**20
    free = shutil.disk_usage(folder).free
    if free < need:
        raise UnavailableError(
            f"{recipe.id} needs {format_bytes(need)} in {folder}, {format_bytes(free)} are free",
            "carme images prune, or set CARME_CACHE to a larger disk",
        )


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old file or the new one, whole; a crash leaves the old one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
