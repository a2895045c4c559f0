"""`carme cluster`: checks cluster files, and writes one from what Slurm reports."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import click

from carme import library
from carme.config import load
from carme.errors import InputError
from carme.simulator.commands.options import write_file
from carme.slurm.models import Node
from carme.view.client import ViewClient


@click.group()
def cluster() -> None:
    """Describe a cluster for the simulator."""


@cluster.command()
@click.option(
    "--gpu", help="Which of the cluster's GPU types, by Slurm's name; the most common if unset."
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write here instead of printing."
)
def describe(gpu: str | None, output: Path | None) -> None:
    """Write a cluster file from what Slurm says; check its comments before you trust it."""
    text = describe_nodes(ViewClient.of(load().view).snapshot().nodes, gpu)
    if output is None:
        click.echo(text, nl=False)
        return
    write_file(output, text)
    click.echo(f"{output}: written; try carme simulate resnet-50 --cluster {output}")


@cluster.command()
@click.argument("path")
def check(path: str) -> None:
    """Check the cluster file PATH and summarise it."""
    described = library.cluster(path)
    node = described.node
    click.echo(
        f"{path}: fine: {described.nodes} nodes x {node.gpus} {node.gpu.name}, "
        f"{node.gpu_link.name} inside, {node.adapters} x {node.network.name} between"
    )


def describe_nodes(nodes: Iterable[Node], gpu_type: str | None = None) -> str:
    """A cluster file for the nodes with one GPU type; comments mark what is guessed."""
    groups: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node in nodes:
        for kind, count in node.gpus.items():
            if count > 0 and (gpu_type is None or kind == gpu_type):
                groups[kind, count].append(node)
    if not groups:
        message = f"no node has GPUs of type {gpu_type!r}" if gpu_type else "no node has GPUs"
        raise InputError(message, "carme nodes shows what Slurm knows")
    kind, count = max(groups, key=lambda key: (len(groups[key]) * key[1], key))
    described = groups.pop((kind, count))
    names = ", ".join(node.name for node in described[:4])
    more = f" and {len(described) - 4} more" if len(described) > 4 else ""
    bundled = library.match_gpu(kind)
    lines = [
        f"# {len(described)} nodes with {count} GPUs that Slurm calls {kind!r}: {names}{more}",
        *(
            f"# Left out: {len(others)} nodes with {number} of {other!r}"
            for (other, number), others in sorted(groups.items(), key=lambda group: group[0])
        ),
        f"nodes = {len(described)}",
        "",
        "# Yours; the world's average of 2023 is the default.",
        "# grams_co2_per_kwh = 480",
        "# pue = 1.0",
        '# storage = "beegfs"      # carme hardware storage',
        "",
        "[node]",
    ]
    if bundled is None:
        lines += [
            f"# No bundled GPU is like {kind!r}. Take the nearest (carme hardware gpus), or",
            "# give it a table [node.gpu] of its own.",
            'like = "dgx-a100"',
        ]
    else:
        default_node = library.gpu(bundled).default_node
        lines.append(f'like = "{default_node}"')
        if library.node(default_node).gpu.name != bundled:
            lines.append(f'gpu = "{bundled}"')
    # A link that one of the nodes' features names, such as `hdr` or `edr`.
    features = {feature.lower() for node in described for feature in node.features}
    words = {word for feature in features for word in re.findall(r"[a-z]+", feature)}
    rate = next((r for r in ("ndr", "hdr", "edr", "fdr", "qdr") if r in words), None)
    lines += [
        f"gpus = {count}",
        f'network = "infiniband-{rate}"'
        if rate
        else '# network = "infiniband-hdr"   # Slurm does not say',
        "# adapters = 1",
    ]
    return "\n".join(lines) + "\n"
