"""A recipe: a folder with `image.def`, `Dockerfile`, `image.toml` and `verify`."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from carme.errors import ConfigError, InputError, MissingError
from carme.images.catalogue import Application, GpuNeeds, Hints, ImageName, ImageVersion
from carme.validation import field_path, message

OWN_RECIPES = Path(__file__).parent / "recipes"
REQUIRED = ("image.toml", "verify")
# Raised when the builder changes so that the same recipe gives another image.
BUILDER_FORMAT = "3"
ArgumentName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,39}$")]
ArgumentValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+=<>,-]{0,80}$")]


class Table(BaseModel):
    """A table of image.toml; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Argument(Table):
    """A build argument that the definition uses."""

    default: ArgumentValue = ""
    choices: tuple[ArgumentValue, ...] = ()
    """Empty: any plain word."""
    help: str = ""


class Variant(Table):
    """Another image from the same recipe: other arguments, other words in the form."""

    arguments: Mapping[ArgumentName, ArgumentValue] = {}
    title: str | None = None
    description: str | None = None
    gpu: GpuNeeds | None = None
    hints: Hints | None = None
    disk_mb: Annotated[int, Field(ge=100)] | None = None


class Manifest(Table):
    """image.toml."""

    title: Annotated[str, Field(min_length=1, max_length=60)]
    description: Annotated[str, Field(min_length=1, max_length=160)]
    """One line for the form."""
    version: ImageVersion
    tags: tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]{0,30}$")], ...] = ()
    parent: ImageName | None = None
    """The image this one builds on."""
    gpu: GpuNeeds = GpuNeeds()
    applications: tuple[Application, ...] = ()
    hints: Hints = Hints()
    arguments: Mapping[ArgumentName, Argument] = {}
    variants: Mapping[ImageName, Variant] = {}
    disk_mb: Annotated[int, Field(ge=100)] = 2000
    """Room that a build takes for a while: the unpacked system and the packed image."""


@dataclass(frozen=True)
class Recipe:
    """A recipe in one variant, with every argument settled."""

    name: str
    folder: Path
    manifest: Manifest
    arguments: Mapping[str, str] = field(default_factory=dict)
    parent: "Recipe | None" = None
    variant: str = ""
    engine: str = "apptainer"

    @property
    def version(self) -> str:
        """The manifest's version, with the variant's name behind it."""
        return f"{self.manifest.version}-{self.variant}" if self.variant else self.manifest.version

    @property
    def id(self) -> str:
        """`name:version`."""
        return f"{self.name}:{self.version}"

    @cached_property
    def hash(self) -> str:
        """Of everything that decides what the image holds; not of what this machine adds."""
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
        """What goes into the image: not the words about it, nor the other engine's file."""
        aside = {"image.toml", "image.def" if self.engine == "docker" else "Dockerfile"}
        found = (path for path in self.folder.rglob("*") if path.is_file())
        kept = (path for path in found if "__pycache__" not in path.parts)
        return sorted(path for path in kept if str(path.relative_to(self.folder)) not in aside)

    @property
    def file(self) -> str:
        """The name of its SIF file: another content, another name."""
        return f"{self.name}-{self.version}-{self.hash[:12]}.sif"


def find_recipes(folders: tuple[Path, ...] = (OWN_RECIPES,)) -> dict[str, Path]:
    """Every recipe by name; a folder further back wins over one in front."""
    found: dict[str, Path] = {}
    for folder in folders:
        if folder.is_dir():
            found |= {path.parent.name: path.parent for path in sorted(folder.glob("*/image.toml"))}
    return found


def load_recipe(
    name: str,
    folders: tuple[Path, ...] = (OWN_RECIPES,),
    variant: str = "",
    arguments: Mapping[str, str] | None = None,
    engine: str = "apptainer",
    _children: tuple[str, ...] = (),
) -> Recipe:
    """The recipe `name` with its parents; what is wrong with it is named with its file."""
    try:
        TypeAdapter(ImageName).validate_python(name)
    except ValidationError:
        message = f"{name!r} cannot be the name of an image"
        raise InputError(message, "a lower-case letter, then letters, digits and -") from None
    known = find_recipes(folders)
    if name not in known:
        if _children:
            message = f"recipe {_children[-1]}: its parent {name!r} has no recipe"
            raise MissingError(message, f"there are: {', '.join(known) or 'none'}")
        raise InputError(f"there is no recipe {name!r}", f"there are: {', '.join(known) or 'none'}")
    if name in _children:
        circle = " → ".join([*_children, name])
        raise ConfigError(f"recipe {name}: its parents go round in a circle: {circle}")
    folder = known[name]
    manifest = load_manifest(folder)
    parent = None
    if manifest.parent:
        parent = load_recipe(manifest.parent, folders, engine=engine, _children=(*_children, name))
    settled = _settle(name, manifest, variant, arguments or {})
    return Recipe(name, folder, _apply(manifest, variant), settled, parent, variant, engine)


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
        raise ConfigError("\n".join(f"{path}: {_explain(e)}" for e in error.errors())) from None


def _explain(problem: Any) -> str:
    is_unknown = problem["type"] == "extra_forbidden"
    return f"{field_path(problem['loc'])}: {'no such key' if is_unknown else message(problem)}"


def _settle(
    name: str, manifest: Manifest, variant: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Every argument with its value: given over variant over default."""
    if variant and variant not in manifest.variants:
        there = ", ".join(manifest.variants) or "none"
        raise InputError(f"recipe {name} has no variant {variant!r}", f"there are: {there}")
    of_variant = manifest.variants[variant].arguments if variant else {}
    values = {key: argument.default for key, argument in manifest.arguments.items()}
    for key, value in {**of_variant, **given}.items():
        if key not in manifest.arguments:
            there = ", ".join(manifest.arguments) or "none"
            raise InputError(f"recipe {name} has no argument {key!r}", f"there are: {there}")
        choices = manifest.arguments[key].choices
        if choices and value not in choices:
            raise InputError(f"{key}={value} is not possible", f"one of: {', '.join(choices)}")
        if not re.fullmatch(r"[A-Za-z0-9._+=<>,-]{0,80}", value):
            raise InputError(f"{key}={value!r} is not possible", "plain letters, digits and ._+=-")
        values[key] = value
    return values


def _apply(manifest: Manifest, variant: str) -> Manifest:
    """The manifest with the words and needs of the variant in place of its own."""
    if not variant:
        return manifest
    chosen = manifest.variants[variant].model_dump(exclude={"arguments"}, exclude_none=True)
    return Manifest.model_validate(manifest.model_dump() | chosen)
