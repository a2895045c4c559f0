"""`carme hardware` and `carme workloads`: the bundled entries and the sources of their figures."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from carme import library
from carme.simulator.commands.options import dimension_option, print_wide
from carme.simulator.hardware import LibraryEntry
from carme.simulator.workload import Workload
from carme.units import format_bytes

KINDS = {
    "gpus": library.gpu,
    "links": library.link,
    "nodes": library.node,
    "storage": library.storage,
    "clusters": library.cluster,
}


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def hardware(name: str | None, as_json: bool) -> None:
    """List GPUs, links, nodes, storage, clusters; NAME (or a kind) shows one with its sources."""
    if name and name not in KINDS:
        for kind, find in KINDS.items():
            if name.lower() in library.names(kind):
                _show(find(name), as_json)
                return
    kinds = [name] if name in KINDS else list(KINDS)
    if name and name not in KINDS:
        library.gpu(name)  # raises MissingError with a suggestion
    if as_json:
        click.echo(json.dumps({kind: library.names(kind) for kind in kinds}, indent=2))
        return
    for kind in kinds:
        table = Table("name", "what", "figures", title=kind, title_justify="left", box=None)
        for entry_name in library.names(kind):
            entry: Any = KINDS[kind](entry_name)
            table.add_row(entry_name, entry.title, _figures(kind, entry))
        print_wide(table)
        click.echo()


@click.command()
@click.argument("name", required=False)
@dimension_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def workloads(name: str | None, dimensions: tuple[str, ...], as_json: bool) -> None:
    """List the bundled workloads; NAME (or a .toml, .onnx or .json file) shows one."""
    if name:
        _show(library.workload(name, library.parse_dimensions(dimensions)), as_json)
        return
    if as_json:
        click.echo(json.dumps(library.names("workloads"), indent=2))
        return
    table = Table("name", "what", "parameters", "forward", "samples", "batch", box=None)
    for entry_name in library.names("workloads"):
        w = library.workload(entry_name)
        flops = f"{w.forward_flops / 1e9:.3g} Gflop" if w.forward_flops else "measured"
        count = f"{w.parameter_count / 1e6:.4g} M"
        table.add_row(entry_name, w.title, count, flops, f"{w.dataset.samples:,}", str(w.batch))
    print_wide(table)


def _figures(kind: str, entry: Any) -> str:
    if kind == "gpus":
        peak = ", ".join(f"{p} {rate / 1e12:.3g}" for p, rate in entry.peak_flops.items())
        return f"{peak} Tflop/s; {format_bytes(entry.memory_bytes)}; {entry.power.limit_watts:g} W"
    if kind == "links":
        return f"{entry.bandwidth / 1e9:.3g} GB/s, {entry.latency_seconds * 1e6:.3g} µs"
    if kind == "nodes":
        network = f"{entry.adapters} x {entry.network.name}"
        return f"{entry.gpus} x {entry.gpu.name}, {entry.gpu_link.name}, {network}"
    if kind == "clusters":
        return f"{entry.nodes} x {entry.node.name}"
    return f"{entry.bandwidth / 1e9:.3g} GB/s, one reader {entry.reader_bandwidth / 1e9:.3g}"


def _plain(value: Any) -> str:
    """A value of a file in one line; an entry with a name is its name."""
    if isinstance(value, dict):
        if "name" in value:
            return str(value["name"])
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(
            f"({_plain(v)})" if isinstance(v, list | tuple) else _plain(v) for v in value
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(entry: LibraryEntry, as_json: bool) -> None:
    data = entry.model_dump(mode="json", exclude_defaults=True)
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    sources = data.pop("sources", {})
    console = Console(highlight=False, width=max(Console().width, 110))
    console.print(f"[bold]{entry.title or entry.name}[/] ({entry.name})")
    if isinstance(entry, Workload):
        data.pop("layers", None)
        facts = [f"{entry.parameter_count / 1e6:.4g} million parameters"]
        if entry.costs:
            facts.append(f"{entry.forward_flops / 1e9:.4g} Gflop forward a sample")
            facts.append(f"{len(entry.costs)} layers")
        console.print(", ".join(facts))
        for warning in data.pop("warnings", ()):
            console.print(f"[yellow]warning:[/] {escape(warning)}")
    table = Table.grid(padding=(0, 2))
    for key, value in data.items():
        if key not in ("name", "title"):
            table.add_row(key, _plain(value))
    console.print(table)
    for figure, source in sources.items():
        console.print(f"  [dim]{figure}: {source}[/]")
