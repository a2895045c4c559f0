"""`carme simulate`: one run, its phases, its limit. `carme timeline`: a window of a run for
Chrome's tracing and Perfetto, and its bursts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from carme.simulator.analysis.scaling_limits import ScalingLimits, scaling_limits
from carme.simulator.analysis.search import replicate
from carme.simulator.analysis.timeline import burst_figures, chrome_trace, simulate_window
from carme.simulator.commands.options import (
    progress_bar,
    simulation_inputs,
    simulation_options,
    write_file,
)
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate as run_simulation
from carme.simulator.runs.result import SimulationResult
from carme.units import (
    counted,
    format_bytes,
    format_duration,
    format_emissions,
    format_joules,
    format_watts,
)


@click.command()
@click.argument("name", metavar="WORKLOAD")
@simulation_options
@click.option(
    "--replicas", type=click.IntRange(2, 100_000), help="Monte Carlo: runs with other seeds."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def simulate(name: str, replicas: int | None, as_json: bool, **options: Any) -> None:
    """Show what training WORKLOAD takes: time, energy, memory, and what limits it.

    WORKLOAD is a bundled name (carme workloads), a .toml file, an .onnx file or the config.json
    of a Hugging Face model.
    """
    workload, cluster, plan = simulation_inputs(name, options)
    result = run_simulation(workload, cluster, plan)
    limits = scaling_limits(workload, cluster, plan) if isinstance(plan, Synchronous) else None
    replica_quantiles = None
    if replicas:
        with progress_bar("replicas") as progress:
            task = progress.add_task("", total=replicas)
            runs = replicate(workload, cluster, plan, replicas, lambda: progress.advance(task))
        replica_quantiles = runs.quantiles()
    if as_json:
        document = result.to_dict()
        if workload.warnings:
            document["warnings"] = workload.warnings
        if limits:
            document["limit"] = limits.limit
            document["next_limit"] = limits.next_limit
            document["next_limit_gpus"] = limits.next_gpus
            document["stalls_at_gpus"] = limits.stalls_at
            document["scaling"] = [point._asdict() for point in limits.points]
        if replica_quantiles:
            document["replicas"] = replica_quantiles
        click.echo(json.dumps(document, indent=2))
        return
    console = Console(highlight=False, width=max(Console().width, 110))
    title, hardware = workload.title or workload.name, cluster.title or cluster.name
    console.print(f"[bold]{title}[/] on {counted(result.gpus, 'GPU')} ({hardware})")
    _print(console, result, limits)
    if replica_quantiles:
        time = replica_quantiles["seconds"]
        low, high = format_duration(time["0.05"]), format_duration(time["0.95"])
        console.print(f"90 % of {replicas} replicas take {low} to {high}")
    for warning in workload.warnings:
        click.echo(f"warning: {warning}", err=True)


def _print(console: Console, result: SimulationResult, limits: ScalingLimits | None) -> None:
    grid = Table.grid(padding=(0, 2))
    rate = (
        f"{result.steps:.0f} steps of {result.step_seconds:.4g} s, batch {result.batch:.4g}, "
        f"{result.throughput:.4g} samples/s"
    )
    watts = f"{result.average_gpu_watts:.0f} W a GPU on average"
    grid.add_row("time", f"[bold]{format_duration(result.seconds)}[/]", rate)
    grid.add_row("GPU energy", f"[bold]{format_joules(result.gpu_joules)}[/]", watts)
    grid.add_row(
        "charged energy",
        format_joules(result.node_joules),
        f"{format_watts(result.average_node_watts)} charged on {counted(result.nodes, 'node')}; "
        f"{format_emissions(result.grams_co2)}",
    )
    if result.whole_node_joules > 1.005 * result.node_joules:
        whole = format_joules(result.whole_node_joules)
        grid.add_row("whole-node energy", whole, "also of what the job does not hold")
    memory = result.memory
    largest = sorted(memory.parts().items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    fits = f"fits; {parts}" if memory.fits else f"[red]does not fit[/]: {memory.why_not()}"
    grid.add_row("memory", f"{format_bytes(memory.total)} of {format_bytes(memory.capacity)}", fits)
    if result.clock < 0.995:
        grid.add_row("clock", f"{result.clock:.0%}", "lowered by the power cap")
    if limits:
        current = next(p for p in limits.points if p.gpus == limits.gpus)
        grid.add_row("efficiency", f"{current.efficiency:.0%}", "of what each GPU would do alone")
        following = f"next: {limits.next_limit}, from {limits.next_gpus} GPUs on"
        grid.add_row("limit", f"[bold]{limits.limit}[/]", following if limits.next_limit else "")
    for name, distribution in (("mini-batch", result.mini_batch), ("staleness", result.staleness)):
        if distribution:
            spread = f"mean; standard deviation {distribution.deviation:.3g}"
            grid.add_row(name, f"{distribution.mean:.4g}", spread)
    console.print(grid)
    phases = Table("phase", "time", "share", box=None, header_style="bold")
    for name, seconds in result.phases.items():
        if seconds > 1e-4 * result.seconds:
            phases.add_row(name, format_duration(seconds), f"{seconds / result.seconds:.1%}")
    console.print(phases)
    if result.step_quantiles:
        low, high = result.step_quantiles["0.05"], result.step_quantiles["0.95"]
        console.print(f"90 % of the steps take {low:.4g} to {high:.4g} s")


@click.command()
@click.argument("name", metavar="WORKLOAD")
@simulation_options
@click.option("--steps", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the trace here.")
@click.option(
    "--hertz",
    type=click.FloatRange(0.1, 1e6),
    help="Sampling rate of the bursts. Default: 20, or as many as a step needs.",
)
@click.option("--json", "as_json", is_flag=True, help="The burst figures for programs.")
def timeline(
    name: str, steps: int, output: Path | None, hertz: float | None, as_json: bool, **options: Any
) -> None:
    """Run a few steps of WORKLOAD operation by operation.

    Open the trace in chrome://tracing or ui.perfetto.dev. The burst figures are those that the
    exporter's samples of such a job would give.
    """
    window = simulate_window(*simulation_inputs(name, options), steps)
    figures = burst_figures(window, 1 / hertz if hertz else None)
    if output:
        write_file(output, json.dumps(chrome_trace(window)))
        click.echo(f"{output}: {window.report.operations} operations", err=True)
    if as_json:
        click.echo(json.dumps({name: b._asdict() for name, b in figures.items()}, indent=2))
        return
    table = Table(
        "resource", "burst", "idle", "burst amount", "pattern", box=None, header_style="bold"
    )
    for name, b in figures.items():
        is_network = name.startswith("network")
        amount = f"{b.burst_amount / 1e6:.4g} MB/s" if is_network else f"{b.burst_amount:.1%}"
        burst, idle = f"{b.burst_seconds:.3g} s", f"{b.idle_seconds:.3g} s"
        table.add_row(name.replace("_", " "), burst, idle, amount, b.pattern)
    console = Console(highlight=False)
    plural = "s" if window.steps > 1 else ""
    console.print(f"{window.steps} step{plural} in {window.report.seconds:.4g} s")
    console.print(table)
