"""`carme simulate`: one run, its phases, its limit."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from carme.simulator.analysis.monte_carlo import replicate
from carme.simulator.analysis.scaling_limits import ScalingLimits, scaling_limits
from carme.simulator.commands.options import (
    find_cluster,
    find_plan,
    find_workload,
    hardware_options,
    plan_options,
)
from carme.simulator.commands.tables import counted, format_emissions, format_watts, progress_bar
from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import BasePlan, Synchronous
from carme.simulator.runs import simulate as run_simulation
from carme.simulator.runs.result import SimulationResult
from carme.simulator.workloads.workload import Workload
from carme.units import format_bytes, format_duration, format_joules


@click.command()
@click.argument("name", metavar="WORKLOAD")
@hardware_options
@plan_options
@click.option(
    "--replicas", type=click.IntRange(2, 100_000), help="Monte Carlo: runs with other seeds."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def simulate(name: str, replicas: int | None, as_json: bool, **options: Any) -> None:
    """Show what training WORKLOAD takes: time, energy, memory, and what limits it.

    WORKLOAD is a bundled name (carme workloads), a .toml or an .onnx file.
    """
    workload = find_workload(name, options)
    cluster, gpus = find_cluster(options)
    plan = find_plan(options, gpus)
    result = run_simulation(workload, cluster, plan)
    limits = scaling_limits(workload, cluster, plan) if isinstance(plan, Synchronous) else None
    replica_quantiles = _replicas(workload, cluster, plan, replicas) if replicas else None
    if as_json:
        document = result.to_dict()
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
    _print(
        result,
        limits,
        replica_quantiles,
        workload.title or workload.name,
        cluster.title or cluster.name,
    )
    for operator in workload.unknown_operators:
        click.echo(f"estimated from its tensors: operator {operator}", err=True)


def _replicas(
    workload: Workload, cluster: Cluster, plan: BasePlan, count: int
) -> dict[str, dict[str, float]]:
    with progress_bar("replicas") as progress:
        task = progress.add_task("", total=count)
        replicas = replicate(workload, cluster, plan, count, lambda: progress.advance(task))
    return replicas.quantiles()


def _print(
    result: SimulationResult,
    limits: ScalingLimits | None,
    replica_quantiles: dict[str, dict[str, float]] | None,
    title: str,
    hardware: str,
) -> None:
    console = Console(highlight=False, width=max(Console().width, 110))
    console.print(f"[bold]{title}[/] on {counted(result.gpus, 'GPU')} ({hardware})")
    grid = Table.grid(padding=(0, 2))
    watts = f"{result.average_gpu_watts:.0f} W a GPU on average"
    grid.add_row("time", f"[bold]{format_duration(result.seconds)}[/]", _rate(result))
    grid.add_row("GPU energy", f"[bold]{format_joules(result.gpu_joules)}[/]", watts)
    grid.add_row(
        "node energy",
        format_joules(result.node_joules),
        f"{format_watts(result.average_node_watts)} on {counted(result.nodes, 'node')}; "
        f"{format_emissions(result.grams_co2)}",
    )
    if result.whole_node_joules > 1.005 * result.node_joules:
        whole = format_joules(result.whole_node_joules)
        grid.add_row("whole nodes", whole, "with what the job does not hold")
    memory = result.memory
    fits = "fits" if memory.fits else f"[red]does not fit[/]: {memory.why_not()}"
    grid.add_row("memory", f"{format_bytes(memory.total)} of {format_bytes(memory.capacity)}", fits)
    if result.clock < 0.995:
        grid.add_row("clock", f"{result.clock:.0%}", "held back by the power limit")
    if limits:
        current = next(p for p in limits.points if p.gpus == limits.gpus)
        grid.add_row("efficiency", f"{current.efficiency:.0%}", "of what each GPU would do alone")
        grid.add_row("limit", f"[bold]{limits.limit}[/]", _next(limits))
    if result.mini_batch:
        grid.add_row("mini-batch", *_distribution(result.mini_batch))
    if result.staleness:
        grid.add_row("staleness", *_distribution(result.staleness))
    console.print(grid)
    phases = Table("phase", "time", "share", box=None, header_style="bold")
    for name, seconds in result.phases.items():
        if seconds > 1e-4 * result.seconds:
            phases.add_row(name, format_duration(seconds), f"{seconds / result.seconds:.1%}")
    console.print(phases)
    if result.step_quantiles:
        low, high = result.step_quantiles["0.05"], result.step_quantiles["0.95"]
        console.print(f"90 % of the steps take {low:.4g} to {high:.4g} s")
    if replica_quantiles:
        time = replica_quantiles["seconds"]
        console.print(
            f"90 % of {int(replica_quantiles['count']['replicas'])} replicas take "
            f"{format_duration(time['0.05'])} to {format_duration(time['0.95'])}"
        )


def _rate(result: SimulationResult) -> str:
    return (
        f"{result.steps:.0f} steps of {result.step_seconds:.4g} s, batch {result.batch:.4g}, "
        f"{result.throughput:.4g} samples/s"
    )


def _next(limits: ScalingLimits) -> str:
    if limits.next_limit is None:
        return ""
    return f"next: {limits.next_limit}, from {limits.next_gpus} GPUs on"


def _distribution(distribution: Any) -> tuple[str, str]:
    return f"{distribution.mean:.4g}", f"mean; standard deviation {distribution.deviation:.3g}"
