"""Tables and JSON of `carme images`."""

import json
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from carme.images.catalogue import Catalogue, Image
from carme.units import format_bytes, format_duration


def catalogue(found: Catalogue, everything: bool, recipes: Iterable[str], as_json: bool) -> None:
    """What is published; with `everything`, also what is retired and what could be built."""
    images = list(found.index.images) if everything else found.offered()
    if as_json:
        entries = [
            {
                **image.model_dump(mode="json", exclude={"packages"}),
                "default": found.is_default(image),
                "offered": image in found.offered(),
            }
            for image in images
        ]
        click.echo(json.dumps({"images": entries, "problems": found.problems}, indent=1))
        return
    table = Table("image", "", "title", "size", "GPU", "built", "verify", "state", box=None)
    table.pad_edge = False
    for image in sorted(images, key=lambda i: (i.name, i.version)):
        table.add_row(
            image.id,
            "default" if found.is_default(image) and image.state == "published" else "",
            image.title,
            format_bytes(image.size_bytes),
            image.gpu.use,
            f"{image.built.at:%Y-%m-%d}",
            "passed" if image.verified.passed else "[red]failed[/]",
            _state(found, image),
        )
    published = {image.name for image in images}
    for name in recipes:
        if name not in published:
            table.add_row(name, "", "", "", "", "", "", "recipe, not built")
    Console().print(table)
    for problem in found.problems:
        click.secho(problem, fg="yellow", err=True)


def _state(found: Catalogue, image: Image) -> str:
    if image.state == "published" and image.file in found.broken:
        return "[red]not offered[/]"
    return image.state


def image(found: Catalogue, chosen: Image, packages: bool, as_json: bool) -> None:
    """Everything about one image."""
    if as_json:
        click.echo(json.dumps(chosen.model_dump(mode="json"), indent=1, ensure_ascii=False))
        return
    built, verified, path = chosen.built, chosen.verified, found.path(chosen)
    verdict = f"{'passed' if verified.passed else 'FAILED'} {verified.at:%Y-%m-%d %H:%M} UTC"
    rows = {
        "image": chosen.id,
        "title": chosen.title,
        "description": chosen.description,
        "tags": ", ".join(chosen.tags),
        "applications": ", ".join(f"{a.title} ({a.path})" for a in chosen.applications),
        "GPU": chosen.gpu.use + (f", CUDA {chosen.gpu.cuda}" if chosen.gpu.cuda else ""),
        "sensible": _hints(chosen),
        "file": str(path),
        "size": format_bytes(chosen.size_bytes),
        "digest": chosen.digest,
        "signed by": chosen.signed_by or "not signed",
        "recipe": chosen.recipe_hash[:12],
        "arguments": ", ".join(f"{k}={v}" for k, v in built.arguments.items()) or "none",
        "built": f"{built.at:%Y-%m-%d %H:%M} UTC, {built.engine}, {format_duration(built.seconds)}",
        "verify": f"{verdict}: {_last_line(path, verified.output)}",
        "packages": f"{len(chosen.packages.system)} Debian, {len(chosen.packages.python)} Python",
    }
    for key, value in rows.items():
        click.echo(f"{key:13} {value}")
    if packages:
        for kind, listed in (
            ("Debian", chosen.packages.system),
            ("Python", chosen.packages.python),
        ):
            click.echo(f"\n{kind}:")
            for name, version in listed.items():
                click.echo(f"  {name} {version}")


def _hints(chosen: Image) -> str:
    hints = chosen.hints
    return f"{hints.cpus} CPUs, {format_bytes(hints.memory_mb * 2**20)}, {hints.gpus} GPUs"


def _last_line(path: Path, output: str) -> str:
    lines = output.splitlines()
    return lines[-1] if lines else f"{path.name} said nothing"
