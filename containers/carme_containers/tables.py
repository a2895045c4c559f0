"""Tables and JSON of `carme images`."""

import json
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

from carme.images.catalogue import Catalogue, Image
from carme.units import format_bytes, format_duration


def print_catalogue(
    catalogue: Catalogue, show_all: bool, recipes: Iterable[str], as_json: bool
) -> None:
    """Print the offered images; with `show_all`, also retired ones and recipes without image."""
    images = list(catalogue.index.images) if show_all else catalogue.offered()
    if as_json:
        entries = [
            {
                **image.model_dump(mode="json", exclude={"packages"}),
                "default": catalogue.is_default(image),
                "offered": image in catalogue.offered(),
            }
            for image in images
        ]
        click.echo(json.dumps({"images": entries, "problems": catalogue.problems}, indent=1))
        return
    table = Table("image", "", "title", "size", "GPU", "built", "verify", "state", box=None)
    table.pad_edge = False
    for image in sorted(images, key=lambda i: (i.name, i.version)):
        is_published = image.state == "published"
        is_broken = is_published and image.file in catalogue.broken
        table.add_row(
            image.id,
            "default" if catalogue.is_default(image) and is_published else "",
            image.title,
            format_bytes(image.size_bytes),
            image.gpu.use,
            f"{image.built.at:%Y-%m-%d}",
            "passed" if image.verified.passed else "[red]failed[/]",
            "[red]not offered[/]" if is_broken else image.state,
        )
    published = {image.name for image in images}
    for name in recipes:
        if name not in published:
            table.add_row(name, "", "", "", "", "", "", "recipe, not built")
    Console().print(table)
    for problem in catalogue.problems:
        click.secho(problem, fg="yellow", err=True)


def print_image(catalogue: Catalogue, image: Image, packages: bool, as_json: bool) -> None:
    """Print all details of one image."""
    if as_json:
        click.echo(json.dumps(image.model_dump(mode="json"), indent=1, ensure_ascii=False))
        return
    built, verified, hints = image.built, image.verified, image.hints
    memory = format_bytes(hints.memory_mb * 2**20)
    last_line = (verified.output.splitlines() or ["no output"])[-1]
    verdict = f"{'passed' if verified.passed else 'FAILED'} {verified.at:%Y-%m-%d %H:%M} UTC"
    rows = {
        "image": image.id,
        "title": image.title,
        "description": image.description,
        "tags": ", ".join(image.tags),
        "applications": ", ".join(f"{a.title} ({a.path})" for a in image.applications),
        "GPU": image.gpu.use + (f", CUDA {image.gpu.cuda}" if image.gpu.cuda else ""),
        "sensible": f"{hints.cpus} CPUs, {memory}, {hints.gpus} GPUs",
        "file": str(catalogue.path(image)),
        "size": format_bytes(image.size_bytes),
        "digest": image.digest,
        "signed by": image.signed_by or "not signed",
        "recipe": image.recipe_hash[:12],
        "arguments": ", ".join(f"{k}={v}" for k, v in built.arguments.items()) or "none",
        "built": f"{built.at:%Y-%m-%d %H:%M} UTC, {built.engine}, {format_duration(built.seconds)}",
        "verify": f"{verdict}: {last_line}",
        "packages": f"{len(image.packages.system)} Debian, {len(image.packages.python)} Python",
    }
    for key, value in rows.items():
        click.echo(f"{key:13} {value}")
    if packages:
        listings = {"Debian": image.packages.system, "Python": image.packages.python}
        for kind, versions in listings.items():
            click.echo(f"\n{kind}:")
            for name, version in versions.items():
                click.echo(f"  {name} {version}")
