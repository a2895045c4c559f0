"""Publishes images: the only writer of the index and of the files beside it."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from carme.config import Config
from carme.errors import ConfigError, DeniedError, InputError, UnavailableError
from carme.images.catalogue import (
    INDEX_NAME,
    Catalogue,
    CatalogueIndex,
    Image,
    check_file,
    file_digest,
    file_stamp,
    load_catalogue,
    read_index,
)
from carme.images.own_image import find_apptainer
from carme.system.apptainer import find_or_install
from carme.system.files import locked, write
from carme.system.programs import ProgressCallback
from carme.units import format_bytes
from carme_containers.apptainer_engine import ApptainerEngine, sign, signer
from carme_containers.builder import Builder, BuildResult
from carme_containers.recipe import OWN_RECIPES, load_recipe

_DRAFT = ".draft."
_DRAFT_MAX_SECONDS = 86400


class Publisher:
    """Changes the catalogue in `folder`, one change at a time, while others read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def catalogue(self) -> Catalogue:
        """The current catalogue."""
        return load_catalogue(self.folder)

    def publish(
        self, path: Path, image: Image, default: bool = True, consume: bool = False
    ) -> Image:
        """Publish the SIF file at `path` as `image`; an earlier one with the same id is retired.

        With `consume`, the file is moved, otherwise linked or copied.
        """
        with self._changing() as index:
            current = self._current(index, image)
            if not current:
                self._place(path, image, consume)
            update: dict[str, object] = {
                "state": "published",
                "stamp": file_stamp(self.folder / image.file),
            }
            if current:  # it may have been verified again after it was built
                update["verified"] = current.verified
            placed = image.model_copy(update=update)
            others = [
                other.model_copy(update={"state": "retired"}) if other.id == image.id else other
                for other in index.images
                if other.file != image.file
            ]
            defaults = dict(index.defaults)
            if default or image.name not in defaults:
                defaults[image.name] = image.version
            changed = CatalogueIndex(images=(*others, placed), defaults=defaults)
            if placed not in index.images or defaults != index.defaults:
                self._write(changed)
            return placed

    def make_default(self, image: Image) -> None:
        """Make this the version that the name alone means."""
        with self._changing() as index:
            defaults = {**index.defaults, image.name: image.version}
            self._write(CatalogueIndex(images=index.images, defaults=defaults))

    def retire(self, id: str) -> list[Image]:
        """Stop offering `name:version` (or all of `name`); the files stay for running sessions."""
        name, _, version = id.partition(":")
        with self._changing() as index:
            published = [image for image in index.images if image.state == "published"]
            retired = [
                image
                for image in published
                if image.name == name and version in {"", image.version}
            ]
            if not retired:
                ids = ", ".join(image.id for image in published) or "none"
                raise InputError(f"no published image {id!r}", f"published: {ids}")
            files = {image.file for image in retired}
            images = tuple(
                image.model_copy(update={"state": "retired"}) if image.file in files else image
                for image in index.images
            )
            self._write(CatalogueIndex(images=images, defaults=_defaults(images, index.defaults)))
            return retired

    def update(self, image: Image, changes: Mapping[str, object]) -> bool:
        """Change the entry of `image`; False if its file has been replaced in the meantime.

        Other fields keep their current values: the image may have been retired in the meantime.
        """
        with self._changing() as index:
            if not any(i.file == image.file and i.digest == image.digest for i in index.images):
                return False
            images = tuple(
                i.model_copy(update=changes) if i.file == image.file else i for i in index.images
            )
            self._write(CatalogueIndex(images=images, defaults=index.defaults))
            return True

    def prune(self, in_use: frozenset[str]) -> list[Image]:
        """Remove retired images that no session uses, and abandoned drafts."""
        with self._changing() as index:
            removed = [i for i in index.images if i.state == "retired" and i.file not in in_use]
            files = {image.file for image in removed}
            images = tuple(image for image in index.images if image.file not in files)
            self._write(CatalogueIndex(images=images, defaults=index.defaults))
            for name in files:
                (self.folder / name).unlink(missing_ok=True)
            for draft in self.folder.glob(".*.sif.*"):
                if _is_abandoned(draft):
                    draft.unlink(missing_ok=True)
            return removed

    def signed_copy(self, image: Image) -> Image | None:
        """The entry of the same build if it is signed and published, and its file is intact."""
        for other in read_index(self.folder).images:
            # A forced build has the same file name, but another time, even within the same second.
            if other.file == image.file and other.built == image.built and other.signed_by:
                return None if check_file(self.folder / other.file, other) else other
        return None

    @contextmanager
    def draft(self, path: Path, image: Image) -> Iterator[Path]:
        """A copy of `path` in the folder that can be changed before it is published."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _check_room(self.folder, image)
        draft = self.folder / f".{image.file}{_DRAFT}{os.getpid()}@{socket.gethostname()}"
        try:
            shutil.copyfile(path, draft)
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def renew_stamps(self) -> None:
        """Update the stamps of intact files, so that readers need not compute their digests."""
        with self._changing() as index:
            images = tuple(
                image
                if check_file(self.folder / image.file, image)
                else image.model_copy(update={"stamp": file_stamp(self.folder / image.file)})
                for image in index.images
            )
            if images != index.images:
                self._write(CatalogueIndex(images=images, defaults=index.defaults))

    def _current(self, index: CatalogueIndex, image: Image) -> Image | None:
        """The entry of the same image if its file in the folder is intact."""
        for other in index.images:
            if other.file == image.file and other.digest == image.digest:
                return None if check_file(self.folder / other.file, other) else other
        return None

    def _place(self, path: Path, image: Image, consume: bool) -> None:
        """Put the file into the folder under its final name in one step."""
        draft = self.folder / f".{image.file}.{os.getpid()}"
        try:
            try:
                if consume:
                    path.rename(draft)
                else:
                    os.link(path, draft)
            except OSError:  # another file system
                _check_room(self.folder, image)
                shutil.copyfile(path, draft)
            if file_digest(draft) != image.digest:
                raise UnavailableError(
                    f"{path} is not the file that was built: its checksum differs",
                    f"carme images build --force {image.name}",
                )
            draft.chmod(0o644)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(self.folder / image.file)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _changing(self) -> Iterator[CatalogueIndex]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            with locked(self.folder / ".lock"):
                yield read_index(self.folder)
        except PermissionError as error:
            message = f"you may not change the images in {self.folder}"
            raise DeniedError(message, "run it as the administrator") from error

    def _write(self, index: CatalogueIndex) -> None:
        text = json.dumps(index.model_dump(mode="json"), indent=1, ensure_ascii=False)
        write(self.folder / INDEX_NAME, text + "\n")


def _defaults(images: tuple[Image, ...], before: Mapping[str, str]) -> dict[str, str]:
    """The default versions; if a default was retired, the newest version replaces it."""
    offered = Catalogue(Path(), CatalogueIndex(images=images, defaults=before)).offered()
    chosen: dict[str, str] = {}
    for image in offered:  # the default of a name comes first, then the newest
        chosen.setdefault(image.name, image.version)
    return chosen


def _is_abandoned(draft: Path) -> bool:
    """Whether no process works on a draft any more; the caller holds the lock."""
    _, separator, owner = draft.name.rpartition(_DRAFT)
    if not separator:
        return True  # `_place` creates and moves such a file under the lock
    pid, _, host = owner.partition("@")
    if host == socket.gethostname() and not Path("/proc", pid).exists():
        return True
    with suppress(FileNotFoundError):  # it has just been published or removed
        return time.time() - draft.stat().st_mtime > _DRAFT_MAX_SECONDS
    return False


def _check_room(folder: Path, image: Image) -> None:
    free = shutil.disk_usage(folder).free
    if free < image.size_bytes:
        need = format_bytes(image.size_bytes)
        raise UnavailableError(f"{folder} has {format_bytes(free)} free, but {need} are needed")


def ensure_image(name: str, config: Config, cache: Path, progress: ProgressCallback) -> Image:
    """The published image of the recipe `name`, built and published if necessary."""
    apptainer = apptainer_for(config, cache, progress)
    engine = ApptainerEngine(apptainer, config.images.debian_mirror)
    builder = Builder(engine, apptainer, cache, progress)
    result = builder.build(load_recipe(name, (OWN_RECIPES, *config.images.recipes)))
    return publish_result(config, apptainer, result)


def publish_result(
    config: Config, apptainer: Path, result: BuildResult, default: bool = True
) -> Image:
    """Publish a built image, signed if the site has a key."""
    publisher = Publisher(config.images.folder)
    image = result.image
    private, public = config.images.signing_key, config.images.verify_key
    if not private:
        return publisher.publish(result.path, image, default)
    if not public:
        raise ConfigError("images.signing_key is set, images.verify_key is not", "set both or none")
    if signed := publisher.signed_copy(image):
        update = signed.model_dump(include={"digest", "size_bytes", "signed_by"})
        return publisher.publish(result.path, image.model_copy(update=update), default)
    # A signature changes the file, so a copy is signed; the cache has the unsigned file.
    with publisher.draft(result.path, image) as draft:
        sign(apptainer, draft, private)
        signed_by = signer(apptainer, draft, public)
        if not signed_by:
            raise ConfigError("images.verify_key is not the public key of images.signing_key")
        update = {
            "digest": file_digest(draft),
            "size_bytes": draft.stat().st_size,
            "signed_by": signed_by,
        }
        return publisher.publish(draft, image.model_copy(update=update), default, consume=True)


def apptainer_for(config: Config, cache: Path, progress: ProgressCallback) -> Path:
    """The configured program, or the one on PATH, or a private copy (on Debian)."""
    program = find_apptainer(config.images.apptainer)
    return program or find_or_install(cache, progress, config.images.debian_mirror)
