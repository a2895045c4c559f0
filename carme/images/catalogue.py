"""The catalogue of published images, read from one index file.

`carme_containers` writes the index. The spawn form, the spawner and the pages read it with this
module and offer no image whose file is missing, incomplete or not the published one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from carme.errors import InputError, MissingError
from carme.units import format_bytes
from carme.validation import explain_first

INDEX_NAME = "index.json"
ImageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
ImageVersion = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{0,39}$")]
FileName = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{0,127}\.sif$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class CatalogueModel(BaseModel):
    """A part of the index; unknown keys are ignored, so that old readers can read new indexes."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Application(CatalogueModel):
    """An application of the image that opens in the browser."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    title: Annotated[str, Field(min_length=1, max_length=80)]
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9/_.-]*$")] = "/lab"
    """Its path below the session's URL."""


class GpuNeeds(CatalogueModel):
    """Whether the image uses GPUs, and which it needs."""

    use: Literal["none", "optional", "required"] = "none"
    cuda: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$")] | None = None
    """The CUDA release in the image, which the driver must support."""
    memory_mb: Annotated[int, Field(ge=0)] = 0
    """The least GPU memory that is useful."""


class SuggestedResources(CatalogueModel):
    """Resources that suit a session with this image, from its recipe."""

    cpus: Annotated[int, Field(ge=1)] = 1
    memory_mb: Annotated[int, Field(ge=128)] = 1024
    gpus: Annotated[int, Field(ge=0)] = 0


class BuildRecord(CatalogueModel):
    """When and how the image was built."""

    at: datetime
    engine: str
    """Program and version, for instance `apptainer 1.4.5`."""
    seconds: Annotated[float, Field(ge=0)] = 0
    arguments: Mapping[str, str] = {}
    """Build arguments, without those that depend on the machine (mirrors)."""
    parent: Digest | None = None
    """The image that it is based on."""


class VerificationResult(CatalogueModel):
    """The result of `verify`, run inside the image."""

    at: datetime
    passed: bool
    seconds: Annotated[float, Field(ge=0)] = 0
    output: str = ""


class Packages(CatalogueModel):
    """The installed packages: name → version."""

    system: Mapping[str, str] = {}
    python: Mapping[str, str] = {}


class Image(CatalogueModel):
    """One published image."""

    name: ImageName
    version: ImageVersion
    title: str
    description: str = ""
    tags: tuple[str, ...] = ()
    file: FileName
    """A name in the folder of the index, without path."""
    digest: Digest
    size_bytes: Annotated[int, Field(gt=0)]
    stamp: str = ""
    """The file's stamp when the digest was computed; while it is the same, the digest is valid."""
    recipe_hash: str
    labels: Mapping[str, str] = {}
    applications: tuple[Application, ...] = ()
    gpu: GpuNeeds = GpuNeeds()
    hints: SuggestedResources = SuggestedResources()
    built: BuildRecord
    verified: VerificationResult
    packages: Packages = Packages()
    state: Literal["published", "retired"] = "published"
    """A retired image is no longer offered; its file stays while sessions use it."""
    signed_by: str | None = None
    """Fingerprint of the key that signed it."""

    @property
    def id(self) -> str:
        """`name:version`."""
        return f"{self.name}:{self.version}"


class CatalogueIndex(CatalogueModel):
    """The index file."""

    format: Literal[1] = 1
    images: tuple[Image, ...] = ()
    defaults: Mapping[ImageName, ImageVersion] = {}
    """The version of each image that its name alone means."""


@dataclass(frozen=True)
class Catalogue:
    """The images of a folder, and what is wrong with some of them."""

    folder: Path
    index: CatalogueIndex
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = field(default_factory=frozenset)

    def offered(self) -> list[Image]:
        """Images that a session can start from, by name; the default version comes first."""
        intact = [
            image
            for image in self.index.images
            if image.state == "published" and image.file not in self.broken
        ]
        return sorted(
            intact, key=lambda i: (i.name, not self.is_default(i), _descending(i.version))
        )

    def is_default(self, image: Image) -> bool:
        """Whether the name alone means this version."""
        return self.index.defaults.get(image.name) == image.version

    def find(self, id: str) -> Image:
        """The offered image `name` (its default version) or `name:version`."""
        name, _, version = id.partition(":")
        candidates = [image for image in self.offered() if image.name == name]
        if version:
            candidates = [image for image in candidates if image.version == version]
        if not candidates:
            offered = ", ".join(image.id for image in self.offered()) or "none is published"
            raise InputError(f"there is no image {id!r}", f"offered: {offered}")
        return candidates[0]

    def path(self, image: Image) -> Path:
        """The path of the image's file."""
        return self.folder / image.file


def load_catalogue(folder: Path, require_signed: bool = False) -> Catalogue:
    """The catalogue in `folder`; incomplete (or unsigned) images are in `problems`, not offered.

    A file that changed since its publication is read once per process, which can take seconds:
    call this in a thread of an event loop.
    """
    index = read_index(folder)
    if not index.images:
        return Catalogue(folder, index, (f"no image is published in {folder}",))
    problems, broken = [], set()
    for image in index.images:
        if image.state != "published":
            continue
        problem = check_file(folder / image.file, image)
        if not problem and require_signed and not image.signed_by:
            problem = "it is not signed, and this site requires it"
        if problem:
            problems.append(f"{image.id} is not offered: {problem}")
            broken.add(image.file)
    return Catalogue(folder, index, tuple(problems), frozenset(broken))


def read_index(folder: Path) -> CatalogueIndex:
    """The index in `folder`; empty if there is none yet."""
    path = folder / INDEX_NAME
    try:
        return CatalogueIndex.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return CatalogueIndex()
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        message = f"{path} is not an index of images: {explain_first(error)}"
        raise MissingError(message, "move it away and publish the images again") from None


def check_file(path: Path, image: Image) -> str:
    """What is wrong with the file of `image`; empty if it is the published one."""
    try:
        status = path.stat()
    except OSError:
        return f"{path.name} is missing"
    if status.st_size != image.size_bytes:
        present, complete = format_bytes(status.st_size), format_bytes(image.size_bytes)
        return f"{path.name} is incomplete: {present} of {complete}"
    if file_stamp(path) == image.stamp:
        return ""
    try:
        is_published = file_digest(path) == image.digest
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return "" if is_published else f"the checksum of {path.name} is not the published one"


def file_stamp(path: Path) -> str:
    """A value that changes with the file: users cannot set the ctime."""
    status = path.stat()
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def file_digest(path: Path) -> str:
    """`sha256:…` of the file, computed once per process and stamp."""
    return _digest(path, file_stamp(path))


@lru_cache(maxsize=1000)
def _digest(path: Path, _stamp: str) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _descending(version: str) -> list[tuple[int, int | str]]:
    """A sort key that puts 1.10 before 1.9."""
    parts = version.replace("-", ".").replace("_", ".").split(".")
    return [(0, -int(part)) if part.isdigit() else (1, part) for part in parts]
