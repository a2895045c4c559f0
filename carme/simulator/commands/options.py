"""Options that several commands share, and the workload, cluster and plan that they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from carme import library
from carme.errors import ConfigError, InputError
from carme.library.plans import PLANS, make_plan
from carme.simulator.hardware.cluster import Cluster, Precision
from carme.simulator.plans.plan import (
    AllReduce,
    BasePlan,
    BatchRule,
)
from carme.simulator.workloads.workload import Optimizer, Workload

F = TypeVar("F", bound=Callable[..., Any])


def _choice(alias: Any) -> click.Choice[str]:
    return click.Choice([str(value) for value in get_args(alias)])


_HARDWARE = (
    click.option(
        "--gpus",
        metavar="NxGPU",
        help="How many of which, such as 8xV100; a number with --cluster.",
    ),
    click.option("--node", help="Kind of node, if not the GPU's usual one: carme hardware nodes."),
    click.option("--network", help="Link between nodes, such as infiniband-hdr or ethernet-10."),
    click.option("--storage", help="Where the data lie: carme hardware storage."),
    click.option(
        "--cluster",
        metavar="FILE",
        help="A cluster's TOML file (or a bundled name), instead of --node.",
    ),
)
_WORKLOAD = (
    click.option(
        "--samples",
        type=click.IntRange(1, 10**13),
        help="Of the data set; its own number if unset.",
    ),
)
_PLAN = (
    click.option(
        "--plan", "kind", type=click.Choice(list(PLANS)), default="synchronous", show_default=True
    ),
    click.option("--batch", type=int, help="Before its rule; the workload's usual one if unset."),
    click.option(
        "--batch-rule", type=_choice(BatchRule), help="How the batch grows with the copies."
    ),
    click.option("--epochs", type=float, help="Passes over the data; the workload's own if unset."),
    click.option("--to-target", is_flag=True, help="Epochs from the workload's convergence curve."),
    click.option("--precision", type=_choice(Precision)),
    click.option("--optimizer", type=_choice(Optimizer)),
    click.option(
        "--power-cap", "power_cap_watts", type=float, metavar="WATTS", help="Of each GPU."
    ),
    click.option(
        "--node-share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Largest of the job's shares of a node's GPUs, processors and memory.",
    ),
    click.option("--tensor", type=int, help="GPUs that share each layer."),
    click.option("--pipeline", type=int, help="Stages of the pipeline."),
    click.option("--micro-batch", type=int, help="Samples in the pipeline at once."),
    click.option("--all-reduce", type=_choice(AllReduce)),
    click.option("--no-overlap", is_flag=True, help="Reduce gradients after the backward pass."),
    click.option("--recompute", type=click.Choice(["none", "full"])),
    click.option("--shard-optimizer", is_flag=True, help="ZeRO stage 1."),
    click.option("--data", type=click.Choice(["sharded", "whole"])),
    click.option("--scaling", type=click.Choice(["strong", "weak"])),
    click.option("--loader", help="Loading method of the data set."),
    click.option("--startup", "startup_seconds", type=float, metavar="SECONDS"),
    click.option(
        "--jitter", type=float, help="Coefficient of variation of a worker's compute time."
    ),
    click.option(
        "--jitter-file",
        type=click.Path(path_type=Path),
        help="Measured compute times of workers, one number a line, to draw jitter from.",
    ),
    click.option("--seed", type=int),
    click.option("--servers", type=int, help="Parameter servers."),
    click.option(
        "--gradient-seconds", type=float, help="Measured time of a gradient (asynchronous)."
    ),
    click.option("--update-seconds", type=float, help="Measured time of an update (asynchronous)."),
    click.option("--first-slaves", type=int, help="Slaves at the start (averaging)."),
    click.option("--packages", type=int, help="Data packages of an epoch (averaging)."),
    click.option("--imbalance", type=float, help="Spread of the packages' sizes (averaging)."),
)


def hardware_options(command: F) -> F:
    """Add the options that describe hardware and data."""
    return _apply((*_WORKLOAD, *_HARDWARE), command)


def plan_options(command: F) -> F:
    """Add the options that describe a plan."""
    return _apply(_PLAN, command)


def _apply(options: tuple[Callable[[Any], Any], ...], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def find_workload(name: str, options: dict[str, Any]) -> Workload:
    """The workload; --samples replaces the number of its data set."""
    samples = options.pop("samples")
    workload = library.workload(name)
    if samples is None:
        return workload
    dataset = workload.dataset.model_copy(update={"samples": samples})
    return workload.model_copy(update={"dataset": dataset})


def find_cluster(options: dict[str, Any]) -> tuple[Cluster, int]:
    """The cluster that the hardware options describe, and the number of GPUs; removes these options
    from `options`."""
    gpus, node, network = options.pop("gpus"), options.pop("node"), options.pop("network")
    file, storage = options.pop("cluster"), options.pop("storage")
    if file:
        cluster = library.cluster(file)
        count = cluster.gpus if gpus is None else _count(gpus, cluster)
    elif gpus:
        count, _ = library.parse_gpus(gpus)
        cluster = library.cluster_of(gpus, node_name=node, network=network)
    else:
        raise InputError("no hardware given", "say --gpus 8xV100 or --cluster FILE")
    if storage:
        cluster = cluster.model_copy(update={"storage": library.storage(storage)})
    return cluster, count


def _count(text: str, cluster: Cluster) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    count, name = library.parse_gpus(text)
    if name != cluster.node.gpu.name:
        raise InputError(f"{cluster.name} has {cluster.node.gpu.name}, not {name}", "give a number")
    return count


def find_plan(options: dict[str, Any], gpus: int) -> BasePlan:
    """The plan that the plan options describe; removes them from `options`."""
    kind = options.pop("kind")
    fields: dict[str, Any] = {"gpus": gpus}
    if path := options.pop("jitter_file"):
        fields["jitter_samples"] = _read_numbers(path)
    if options.pop("no_overlap"):
        fields["overlap"] = False
    for option in _PLAN:
        name = _parameter(option)
        if name in options:
            value = options.pop(name)
            if value is not None and value is not False:
                fields[name] = value
    return make_plan(kind, fields)


def _read_numbers(path: Path) -> list[float]:
    try:
        return [float(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", "write one number a line") from None


def _parameter(option: Callable[[Any], Any]) -> str:
    """The parameter name of a click option decorator."""

    def probe() -> None:
        """A command to attach the option to."""

    name = option(probe).__click_params__[0].name
    return str(name)
