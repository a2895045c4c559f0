"""`carme cluster`: checks cluster files, and writes one from what Slurm reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import click

from carme import library
from carme.config import load
from carme.errors import InputError
from carme.simulator.commands.options import write_file
from carme.view.client import ViewClient


class SlurmNode(Protocol):
    """The attributes of `carme.slurm.models.Node` that a cluster file needs."""

    @property
    def name(self) -> str: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def gpus(self) -> Mapping[str, int]: ...
    @property
    def features(self) -> Sequence[str]: ...


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


def describe_nodes(nodes: Iterable[SlurmNode], gpu_type: str | None = None) -> str:
    """A cluster file for the nodes with one GPU type; comments mark what is guessed."""
    groups: Counter[tuple[str, int]] = Counter()
    names: dict[tuple[str, int], list[str]] = {}
    features: dict[tuple[str, int], set[str]] = {}
    for node in nodes:
        for kind, count in node.gpus.items():
            if count > 0 and (gpu_type is None or kind == gpu_type):
                key = (kind, count)
                groups[key] += 1
                names.setdefault(key, []).append(node.name)
                features.setdefault(key, set()).update(node.features)
    if not groups:
        message = f"no node has GPUs of type {gpu_type!r}" if gpu_type else "no node has GPUs"
        raise InputError(message, "carme nodes shows what Slurm knows")
    kind, count = max(groups, key=lambda key: (groups[key] * key[1], key))
    bundled = library.match_gpu(kind)
    lines = [
        f"# {groups[kind, count]} nodes with {count} GPUs that Slurm calls {kind!r}: "
        + ", ".join(names[kind, count][:4])
        + (f" and {groups[kind, count] - 4} more" if groups[kind, count] > 4 else ""),
        *(
            f"# Left out: {number} nodes with {each[1]} of {each[0]!r}"
            for each, number in sorted(groups.items())
            if each != (kind, count)
        ),
        f"nodes = {groups[kind, count]}",
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
    network = _network(features[kind, count])
    lines += [
        f"gpus = {count}",
        f'network = "{network}"'
        if network
        else '# network = "infiniband-hdr"   # Slurm does not say',
        "# adapters = 1",
    ]
    return "\n".join(lines) + "\n"


def _network(features: set[str]) -> str | None:
    """A link that one of the nodes' features names, such as `hdr` or `edr`."""
    words = {word for feature in features for word in re.findall(r"[a-z]+", feature.lower())}
    rate = next((r for r in ("ndr", "hdr", "edr", "fdr", "qdr") if r in words), None)
    return f"infiniband-{rate}" if rate else None
