"""A recipe: a folder with `image.def`, `Dockerfile`, `image.toml` and `verify`."""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from carme.errors import ConfigError, InputError, MissingError
from carme.images.catalogue import (
    Application,
    GpuNeeds,
    ImageName,
    ImageVersion,
    SuggestedResources,
)
from carme.validation import explain

OWN_RECIPES = Path(__file__).parent / "recipes"
REQUIRED = ("image.toml", "verify")
# Increased when the builder changes so that the same recipe builds another image.
BUILDER_FORMAT = "3"
ArgumentName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,39}$")]
ArgumentValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+=<>,-]{0,80}$")]


class ManifestTable(BaseModel):
    """A table of image.toml; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Argument(ManifestTable):
    """A build argument that the definition uses."""

    default: ArgumentValue = ""
    choices: tuple[ArgumentValue, ...] = ()
    """Allowed values; empty: any plain word."""
    help: str = ""


class Variant(ManifestTable):
    """Another image from the same recipe, with other arguments and another description."""

    arguments: Mapping[ArgumentName, ArgumentValue] = {}
    title: str | None = None
    description: str | None = None
    gpu: GpuNeeds | None = None
    hints: SuggestedResources | None = None
    disk_mb: Annotated[int, Field(ge=100)] | None = None


class Manifest(ManifestTable):
    """image.toml."""

    title: Annotated[str, Field(min_length=1, max_length=60)]
    description: Annotated[str, Field(min_length=1, max_length=160)]
    """One line for the spawn form."""
    version: ImageVersion
    tags: tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]{0,30}$")], ...] = ()
    parent: ImageName | None = None
    """The image that this one is based on."""
    gpu: GpuNeeds = GpuNeeds()
    applications: tuple[Application, ...] = ()
    hints: SuggestedResources = SuggestedResources()
    arguments: Mapping[ArgumentName, Argument] = {}
    variants: Mapping[ImageName, Variant] = {}
    disk_mb: Annotated[int, Field(ge=100)] = 2000
    """Disk space during a build: for the unpacked system and the image."""


@dataclass(frozen=True)
class Recipe:
    """A recipe in one variant, with the value of every argument."""

    name: str
    folder: Path
    manifest: Manifest
    arguments: Mapping[str, str] = field(default_factory=dict)
    parent: "Recipe | None" = None
    variant: str = ""
    engine: str = "apptainer"

    @property
    def version(self) -> str:
        """The manifest's version, followed by the variant's name."""
        return f"{self.manifest.version}-{self.variant}" if self.variant else self.manifest.version

    @property
    def id(self) -> str:
        """`name:version`."""
        return f"{self.name}:{self.version}"

    @cached_property
    def hash(self) -> str:
        """A hash of everything that determines the content of the image, except this machine."""
        total = hashlib.sha256(f"carme-image-{BUILDER_FORMAT}\n{self.id}\n".encode())
        for path in self._files():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(self.folder)} {content}\n".encode())
        for key, value in sorted(self.arguments.items()):
            total.update(f"{key}={value}\n".encode())
        if self.engine != "apptainer":
            total.update(f"engine {self.engine}\n".encode())
        if self.parent:
            total.update(f"parent {self.parent.hash}\n".encode())
        return total.hexdigest()

    def _files(self) -> list[Path]:
        """The files that determine the content: not image.toml, nor the other engine's file."""
        excluded = {"image.toml", "image.def" if self.engine == "docker" else "Dockerfile"}
        everything = list(self.folder.rglob("*"))
        folder = self.folder.resolve()
        for path in everything:
            # Root may build the recipe of somebody else, and would read the target for them.
            # Path.resolve raises RuntimeError for a loop of links before Python 3.13.
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):
                raise InputError(f"{path} is a link that leaves the recipe", "copy the file there")
        files = (path for path in everything if path.is_file())
        sources = (path for path in files if "__pycache__" not in path.parts)
        return sorted(p for p in sources if str(p.relative_to(self.folder)) not in excluded)

    @property
    def file(self) -> str:
        """The name of its SIF file, which depends on the content."""
        return f"{self.name}-{self.version}-{self.hash[:12]}.sif"


def find_recipes(folders: tuple[Path, ...] = (OWN_RECIPES,)) -> dict[str, Path]:
    """Every recipe's folder by name; later folders override earlier ones."""
    recipes: dict[str, Path] = {}
    for folder in folders:
        if folder.is_dir():
            manifests = sorted(folder.glob("*/image.toml"))
            recipes |= {path.parent.name: path.parent for path in manifests}
    return recipes


def load_recipe(
    name: str,
    folders: tuple[Path, ...] = (OWN_RECIPES,),
    variant: str = "",
    arguments: Mapping[str, str] | None = None,
    engine: str = "apptainer",
    _children: tuple[str, ...] = (),
) -> Recipe:
    """The recipe `name` with its parents; errors name the file that is wrong."""
    try:
        TypeAdapter(ImageName).validate_python(name)
    except ValidationError:
        message = f"{name!r} cannot be the name of an image"
        raise InputError(message, "a lower-case letter, then letters, digits and -") from None
    recipes = find_recipes(folders)
    if name not in recipes:
        hint = f"there are: {', '.join(recipes) or 'none'}"
        if _children:
            message = f"recipe {_children[-1]}: its parent {name!r} has no recipe"
            raise MissingError(message, hint)
        raise InputError(f"there is no recipe {name!r}", hint)
    if name in _children:
        circle = " → ".join([*_children, name])
        raise ConfigError(f"recipe {name}: its parents form a circle: {circle}")
    folder = recipes[name]
    manifest = load_manifest(folder)
    parent = None
    if manifest.parent:
        parent = load_recipe(manifest.parent, folders, engine=engine, _children=(*_children, name))
    values = _argument_values(name, manifest, variant, arguments or {})
    return Recipe(name, folder, _apply(manifest, variant), values, parent, variant, engine)


def load_manifest(folder: Path) -> Manifest:
    """image.toml of the recipe in `folder`; errors name file and key."""
    for required in REQUIRED:
        if not (folder / required).is_file():
            raise MissingError(f"recipe {folder.name}: {folder / required} is missing")
    path = folder / "image.toml"
    try:
        return Manifest.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        lines = explain(error, with_values=False, model=Manifest)
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None


def _argument_values(
    name: str, manifest: Manifest, variant: str, arguments: Mapping[str, str]
) -> dict[str, str]:
    """The value of every argument: from `arguments`, else the variant, else the default."""
    if variant and variant not in manifest.variants:
        variants = ", ".join(manifest.variants) or "none"
        raise InputError(f"recipe {name} has no variant {variant!r}", f"there are: {variants}")
    of_variant = manifest.variants[variant].arguments if variant else {}
    values = {key: argument.default for key, argument in manifest.arguments.items()}
    for key, value in {**of_variant, **arguments}.items():
        if key not in manifest.arguments:
            names = ", ".join(manifest.arguments) or "none"
            raise InputError(f"recipe {name} has no argument {key!r}", f"there are: {names}")
        choices = manifest.arguments[key].choices
        if choices and value not in choices:
            raise InputError(f"{key}={value} is not possible", f"one of: {', '.join(choices)}")
        if not re.fullmatch(r"[A-Za-z0-9._+=<>,-]{0,80}", value):
            raise InputError(f"{key}={value!r} is not possible", "plain letters, digits and ._+=-")
        values[key] = value
    return values


def _apply(manifest: Manifest, variant: str) -> Manifest:
    """The manifest with the description and requirements of the variant."""
    if not variant:
        return manifest
    overrides = manifest.variants[variant].model_dump(exclude={"arguments"}, exclude_none=True)
    return Manifest.model_validate(manifest.model_dump() | overrides)
