"""Publishing: the only writer of the index and of the files beside it."""

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from carme.errors import DeniedError, InputError, UnavailableError
from carme.images.catalogue import (
    INDEX_NAME,
    Catalogue,
    Image,
    Index,
    check_file,
    dump_index,
    file_digest,
    file_stamp,
    load_catalogue,
    read_index,
)
from carme.system.files import locked
from carme.units import format_bytes
from carme_containers.builder import write_atomically

_DRAFT = ".draft."
_DRAFT_MAX_SECONDS = 86400


class Publisher:
    """Changes the catalogue in `folder`, one change at a time; readers never wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def catalogue(self) -> Catalogue:
        """What is there."""
        return load_catalogue(self.folder)

    def publish(
        self, path: Path, image: Image, default: bool = True, consume: bool = False
    ) -> Image:
        """Offer the SIF file at `path` as `image`; the same name and version of before retires.

        With `consume`, the file itself is moved (it is a draft), else linked or copied.
        """
        with self._changing() as index:
            current = self._served(index, image)
            if not current:
                self._place(path, image, consume)
            update: dict[str, object] = {
                "state": "published",
                "stamp": file_stamp(self.folder / image.file),
            }
            if current:  # it may have been verified again since it was built
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
            changed = Index(images=(*others, placed), defaults=defaults)
            if placed not in index.images or defaults != index.defaults:
                self._write(changed)
            return placed

    def make_default(self, image: Image) -> None:
        """Let the bare name mean this version."""
        with self._changing() as index:
            defaults = {**index.defaults, image.name: image.version}
            self._write(Index(images=index.images, defaults=defaults))

    def retire(self, wanted: str) -> list[Image]:
        """Offer `name:version` (or all of `name`) no longer; files stay for running sessions."""
        name, _, version = wanted.partition(":")
        with self._changing() as index:
            gone = [
                image
                for image in index.images
                if image.state == "published"
                and image.name == name
                and version in {"", image.version}
            ]
            if not gone:
                known = ", ".join(i.id for i in index.images if i.state == "published") or "none"
                raise InputError(f"no published image {wanted!r}", f"published: {known}")
            files = {image.file for image in gone}
            images = tuple(
                image.model_copy(update={"state": "retired"}) if image.file in files else image
                for image in index.images
            )
            self._write(Index(images=images, defaults=_defaults(images, index.defaults)))
            return gone

    def update(self, image: Image, changes: Mapping[str, object]) -> bool:
        """Note what was found out about `image`; False when its file is another one by now.

        Finding out takes minutes: what else the entry says, it says now (it may have retired).
        """
        with self._changing() as index:
            if not any(i.file == image.file and i.digest == image.digest for i in index.images):
                return False
            images = tuple(
                i.model_copy(update=changes) if i.file == image.file else i for i in index.images
            )
            self._write(Index(images=images, defaults=index.defaults))
            return True

    def prune(self, in_use: frozenset[str]) -> list[Image]:
        """Remove retired images that no session uses, and files that are in no index."""
        with self._changing() as index:
            gone = [i for i in index.images if i.state == "retired" and i.file not in in_use]
            files = {image.file for image in gone}
            images = tuple(image for image in index.images if image.file not in files)
            self._write(Index(images=images, defaults=index.defaults))
            for name in files:
                (self.folder / name).unlink(missing_ok=True)
            for draft in self.folder.glob(".*.sif.*"):
                if _abandoned(draft):
                    draft.unlink(missing_ok=True)
            return gone

    def signed_copy(self, image: Image) -> Image | None:
        """The entry of the same build that was signed and published before, its file whole."""
        for other in read_index(self.folder).images:
            # A forced build has the file name of before, but another time.
            if other.file == image.file and other.built == image.built and other.signed_by:
                return None if check_file(self.folder / other.file, other) else other
        return None

    @contextmanager
    def draft(self, path: Path, image: Image) -> Iterator[Path]:
        """A copy of `path` in the folder that may be changed before it is published."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _check_room(self.folder, image)
        draft = self.folder / f".{image.file}{_DRAFT}{os.getpid()}@{socket.gethostname()}"
        try:
            shutil.copyfile(path, draft)
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def renew_stamps(self) -> None:
        """Note the present state of files that are whole, so that readers need not read them."""
        with self._changing() as index:
            images = tuple(
                image
                if check_file(self.folder / image.file, image)
                else image.model_copy(update={"stamp": file_stamp(self.folder / image.file)})
                for image in index.images
            )
            if images != index.images:
                self._write(Index(images=images, defaults=index.defaults))

    def _served(self, index: Index, image: Image) -> Image | None:
        """The entry of this very image when its file lies in the folder already, whole."""
        for other in index.images:
            if other.file == image.file and other.digest == image.digest:
                return None if check_file(self.folder / other.file, other) else other
        return None

    def _place(self, path: Path, image: Image, consume: bool) -> None:
        """Put the file into the folder under its final name, whole from the first moment."""
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
                    f"{path} is not what was built: its checksum differs",
                    f"carme images build --force {image.name}",
                )
            draft.chmod(0o644)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(self.folder / image.file)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _changing(self) -> Iterator[Index]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            with locked(self.folder / ".lock"):
                yield read_index(self.folder)
        except PermissionError as error:
            message = f"you may not change the images in {self.folder}"
            raise DeniedError(message, "run it as the administrator") from error

    def _write(self, index: Index) -> None:
        write_atomically(self.folder / INDEX_NAME, dump_index(index))


def _defaults(images: tuple[Image, ...], before: Mapping[str, str]) -> dict[str, str]:
    """Defaults that still exist; a name whose default retired gets its newest version."""
    offered = Catalogue(Path(), Index(images=images, defaults=before)).offered()
    chosen: dict[str, str] = {}
    for image in offered:  # the default of a name comes first, then the newest
        chosen.setdefault(image.name, image.version)
    return chosen


def _abandoned(draft: Path) -> bool:
    """Whether nobody works on a draft any more, asked by who holds the lock."""
    _, mark, maker = draft.name.rpartition(_DRAFT)
    if not mark:
        return True  # such a one is made and moved under the lock
    process, _, host = maker.partition("@")
    if host == socket.gethostname() and not Path("/proc", process).exists():
        return True
    with suppress(FileNotFoundError):  # it was published or given up just now
        return time.time() - draft.stat().st_mtime > _DRAFT_MAX_SECONDS
    return False


def _check_room(folder: Path, image: Image) -> None:
    free = shutil.disk_usage(folder).free
    if free < image.size_bytes:
        need = format_bytes(image.size_bytes)
        raise UnavailableError(f"{folder} has {format_bytes(free)} free, but {need} are needed")
