"""What published tables call models, GPUs, precisions and interconnects, in the library's names.

The table of names is data (`carme/data/published/names.toml`).
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict

from carme import library
from carme.measurements.rows import PublishedRow


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ModelName(_Entry):
    """A model: the workload, and what a throughput counts in a sample."""

    name: str = ""
    notes: str = ""
    repo: str = ""
    workload: str
    items: dict[str, float] = {}
    fields: dict[str, Any] = {}


class GpuName(_Entry):
    """Another way to write a GPU's name."""

    pattern: str
    name: str


class PrecisionName(_Entry):
    """The recipe of a plan that a precision means."""

    pattern: str
    recipe: str


class SoftwareDefaults(_Entry):
    """Fields of the plan that the software of a source implies."""

    repo: str = ""
    notes: str = ""
    plan: dict[str, Any] = {}
    transformer: dict[str, Any] = {}
    """Fields of the transformer."""
    recipes: dict[str, str] = {}
    """Recipes in the place of those that the printed precision means elsewhere."""


class Interconnect(_Entry):
    """The node, or the links in it, that a text means."""

    pattern: str
    node: str = ""
    network: str = ""
    adapters: int = 1
    pair_link: bool = False


class NameTable(_Entry):
    """The whole table."""

    models: tuple[ModelName, ...]
    gpus: tuple[GpuName, ...]
    precisions: tuple[PrecisionName, ...]
    defaults: tuple[SoftwareDefaults, ...]
    interconnects: tuple[Interconnect, ...]
    files: tuple[str, ...]
    """Tables that are expected in `published/`."""
    in_sample: dict[str, str]
    """Constants that were fitted on the rows of a source."""


@cache
def table() -> NameTable:
    """The bundled names."""
    text = files("carme.data").joinpath("published", "names.toml").read_text(encoding="utf-8")
    return NameTable.model_validate(tomllib.loads(text))


def _occurs(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def plain(name: str) -> str:
    """A name without blanks, punctuation and what stands in brackets; points in numbers stay."""
    name = re.sub(r"\(.*?\)", "", name.lower())
    return re.sub(r"[^a-z0-9.]|\.(?!\d)|(?<!\d)\.", "", name)


@cache
def _library_workloads() -> dict[str, str]:
    """By plain name, with and without points: `mnasnet0_5` is `mnasnet-0.5`."""
    names = library.names("workloads")
    exact = {plain(name): name for name in names}
    return {plain(name).replace(".", ""): name for name in names} | exact


def find_model(row: PublishedRow) -> ModelName | None:
    """The workload of the row's model; None if the library has none."""
    name = plain(row.text("model"))
    for entry in table().models:
        match = re.fullmatch(entry.name, name)
        if (
            match
            and _occurs(entry.notes, row.text("notes"))
            and _occurs(entry.repo, row.text("source_repo"))
        ):
            return entry.model_copy(update={"workload": match.expand(entry.workload)})
    bundled = _library_workloads().get(name)
    return ModelName(workload=bundled) if bundled else None


_MEMORY_SIZES = (12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 180, 192)


@cache
def find_gpu(text: str, form: str, memory_gb: float | None) -> str | None:
    """The library's GPU: the one with the most words of its name among those of the row."""
    name = text.lower()
    for entry in table().gpus:
        name = re.sub(entry.pattern, entry.name, name)
    words = set(re.findall(r"[a-z0-9]+", name))
    if form:
        words.add(form.lower())
    if memory_gb and not any(re.fullmatch(r"\d+gb", word) for word in words):
        nearest = min(_MEMORY_SIZES, key=lambda size: abs(size - memory_gb))
        words.add(f"{nearest}gb")
    words |= {f"{a}{b}" for a, b in re.findall(r"(\d+) (gb)", name)}
    matching = [
        bundled
        for bundled in library.names("gpus")
        if set(re.findall(r"[a-z0-9]+", bundled)) <= words and library.gpu(bundled).kind == "gpu"
    ]
    return max(matching, key=lambda bundled: (bundled.count("-"), "pcie" in bundled), default=None)


def find_precision(text: str) -> str | None:
    """The recipe of a printed precision."""
    return next((p.recipe for p in table().precisions if _occurs(p.pattern, text)), None)


def software_defaults(row: PublishedRow) -> SoftwareDefaults:
    """What the row's source implies; an earlier entry wins."""
    plan: dict[str, Any] = {}
    transformer: dict[str, Any] = {}
    recipes: dict[str, str] = {}
    for entry in reversed(table().defaults):
        if _occurs(entry.repo, row.text("source_repo")) and _occurs(entry.notes, row.text("notes")):
            plan |= entry.plan
            transformer |= entry.transformer
            recipes |= entry.recipes
    return SoftwareDefaults(plan=plan, transformer=transformer, recipes=recipes)


def find_interconnect(text: str) -> Interconnect | None:
    """The entry for a printed interconnect."""
    return next((i for i in table().interconnects if text and _occurs(i.pattern, text)), None)
