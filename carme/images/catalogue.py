"""The catalogue of published images as everybody but its maker sees it: one index file, read only.

`carme_containers` writes the index. The form, the launcher and the pages read it here, and offer
nothing whose file is missing, half-written or not the one that was published.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
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
    """A piece of the index; keys of a newer Carme are skipped, so old readers keep working."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Application(CatalogueModel):
    """Something that the image offers in the browser."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    title: Annotated[str, Field(min_length=1, max_length=80)]
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9/_.-]*$")] = "/lab"
    """Where it is below the session's address."""


class GpuNeeds(CatalogueModel):
    """What the image does with GPUs."""

    use: Literal["none", "optional", "required"] = "none"
    cuda: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$")] | None = None
    """The CUDA release inside; the driver has to be new enough for it."""
    memory_mb: Annotated[int, Field(ge=0)] = 0
    """GPU memory below which it makes no sense."""


class Hints(CatalogueModel):
    """What a session with this image sensibly asks for; the form starts with it."""

    cpus: Annotated[int, Field(ge=1)] = 1
    memory_mb: Annotated[int, Field(ge=128)] = 1024
    gpus: Annotated[int, Field(ge=0)] = 0


class Built(CatalogueModel):
    """When and with what the image was made."""

    at: datetime
    engine: str
    """Program and version, for instance `apptainer 1.4.5`."""
    seconds: Annotated[float, Field(ge=0)] = 0
    arguments: Mapping[str, str] = {}
    """Build arguments that differ from machine to machine (mirrors) are not among them."""
    parent: Digest | None = None
    """The image it builds on."""


class Verified(CatalogueModel):
    """What `verify` said, run inside the image."""

    at: datetime
    passed: bool
    seconds: Annotated[float, Field(ge=0)] = 0
    output: str = ""


class Packages(CatalogueModel):
    """What is inside: name → version."""

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
    """Its name in the folder of the index; never a path."""
    digest: Digest
    size_bytes: Annotated[int, Field(gt=0)]
    stamp: str = ""
    """What the file system said when the digest was taken; unchanged, the digest still holds."""
    recipe_hash: str
    labels: Mapping[str, str] = {}
    applications: tuple[Application, ...] = ()
    gpu: GpuNeeds = GpuNeeds()
    hints: Hints = Hints()
    built: Built
    verified: Verified
    packages: Packages = Packages()
    state: Literal["published", "retired"] = "published"
    """A retired image is no longer offered; its file stays while sessions use it."""
    signed_by: str | None = None
    """Fingerprint of the key that signed it."""

    @property
    def id(self) -> str:
        """`name:version`, what a person types."""
        return f"{self.name}:{self.version}"


class Index(CatalogueModel):
    """The whole file."""

    format: Literal[1] = 1
    images: tuple[Image, ...] = ()
    defaults: Mapping[ImageName, ImageVersion] = {}
    """The version that the bare name means."""


@dataclass(frozen=True)
class Catalogue:
    """The images of a folder, with what is wrong with some of them."""

    folder: Path
    index: Index
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = field(default_factory=frozenset)

    def offered(self) -> list[Image]:
        """What a session can start from: defaults first within a name, names in order."""
        whole = [
            image
            for image in self.index.images
            if image.state == "published" and image.file not in self.broken
        ]
        return sorted(whole, key=lambda i: (i.name, not self.is_default(i), _descending(i.version)))

    def is_default(self, image: Image) -> bool:
        """Whether the bare name means this one."""
        return self.index.defaults.get(image.name) == image.version

    def find(self, wanted: str) -> Image:
        """The offered image that `name` (its default version) or `name:version` means."""
        name, _, version = wanted.partition(":")
        candidates = [image for image in self.offered() if image.name == name]
        if version:
            candidates = [image for image in candidates if image.version == version]
        if not candidates:
            known = ", ".join(image.id for image in self.offered()) or "none is published"
            raise InputError(f"there is no image {wanted!r}", f"offered: {known}")
        return candidates[0]

    def path(self, image: Image) -> Path:
        """Where the image's file is."""
        return self.folder / image.file


def load_catalogue(folder: Path, require_signed: bool = False) -> Catalogue:
    """The catalogue in `folder`; what is not whole (or not signed) is in `problems`, not offered.

    A file that changed since it was published is read in full once a process, which can take
    seconds: an event loop calls this in a thread.
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
            problem = "it is not signed, and this site demands it"
        if problem:
            problems.append(f"{image.id} is not offered: {problem}")
            broken.add(image.file)
    return Catalogue(folder, index, tuple(problems), frozenset(broken))


def read_index(folder: Path) -> Index:
    """The index in `folder`, empty when there is none yet."""
    path = folder / INDEX_NAME
    try:
        return Index.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Index()
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        message = f"{path} is not an index of images: {explain_first(error)}"
        raise MissingError(message, "move it away and publish the images again") from None


def dump_index(index: Index) -> str:
    """The text of the index file."""
    return json.dumps(index.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def check_file(path: Path, image: Image) -> str:
    """What is wrong with the file of `image`; empty when it is the one that was published."""
    try:
        status = path.stat()
    except OSError:
        return f"{path.name} is missing"
    if status.st_size != image.size_bytes:
        have, want = format_bytes(status.st_size), format_bytes(image.size_bytes)
        return f"{path.name} is half-written: {have} of {want}"
    if file_stamp(path) == image.stamp:
        return ""
    try:
        same = file_digest(path) == image.digest
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return "" if same else f"the checksum of {path.name} is not the published one"


def file_stamp(path: Path) -> str:
    """Changes whenever the file does: the change time cannot be set back by hand."""
    status = path.stat()
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_ctime_ns}"


_digests: dict[tuple[Path, str], str] = {}


def file_digest(path: Path) -> str:
    """`sha256:…` of the file, computed once a process for each state of it."""
    key = (path, file_stamp(path))
    if key not in _digests:
        with path.open("rb") as file:
            _digests[key] = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]


def _descending(version: str) -> list[tuple[int, int | str]]:
    """A sort key that puts 1.10 before 1.9."""
    parts = version.replace("-", ".").replace("_", ".").split(".")
    return [(0, -int(part)) if part.isdigit() else (1, part) for part in parts]
