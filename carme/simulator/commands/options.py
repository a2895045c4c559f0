"""What several commands share: options, the workload, cluster and plan that they describe, and
terminal output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.status import Status
from rich.table import Table

from carme import library
from carme.errors import ConfigError, InputError
from carme.library.data_sheet import STEP_FACTOR, data_sheet_gpu
from carme.simulator.frameworks import Framework
from carme.simulator.hardware import Cluster
from carme.simulator.plans import (
    AllReduce,
    BasePlan,
    BatchRule,
    Recompute,
    Sharding,
)
from carme.simulator.precision import NumberType, Precision
from carme.simulator.workload import Optimizer, Workload

F = TypeVar("F", bound=Callable[..., Any])


def _choice(alias: Any) -> click.Choice[str]:
    return click.Choice([str(value) for value in get_args(alias)])


dimension_option = click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a dimension that an .onnx or .json file leaves open, such as sequence=512.",
)
_OPTIONS = (
    dimension_option,
    click.option(
        "--samples",
        type=click.IntRange(1, 10**13),
        help="Samples in the data set. Default: those of the workload's data set.",
    ),
    click.option(
        "--gpus",
        metavar="NxGPU",
        help="Number and type of GPUs, such as 8xV100. With --cluster, the number alone.",
    ),
    click.option(
        "--gpu-flops",
        multiple=True,
        metavar="TYPE=FLOPS",
        help="A GPU of your own, from its data sheet: dense peak by type, such as bf16=989e12.",
    ),
    click.option("--gpu-memory", type=float, metavar="BYTES", help="With --gpu-flops."),
    click.option(
        "--gpu-bandwidth", type=float, metavar="BYTES", help="Of its memory, in a second."
    ),
    click.option(
        "--node", help="Type of node (carme hardware nodes). Default: the GPU's usual one."
    ),
    click.option(
        "--nodes",
        type=click.IntRange(1, 10**6),
        help="Nodes to spread the GPUs over. Default: as few as possible.",
    ),
    click.option("--network", help="Link between nodes, such as infiniband-hdr or ethernet-10."),
    click.option("--storage", help="File system that holds the data set (carme hardware storage)."),
    click.option(
        "--cluster",
        metavar="FILE",
        help="A cluster's TOML file (or a bundled name), instead of --node.",
    ),
    click.option(
        "--plan",
        "kind",
        type=click.Choice(list(library.PLANS)),
        default="synchronous",
        show_default=True,
    ),
    click.option(
        "--batch", type=int, help="Batch before --batch-rule is applied. Default: the workload's."
    ),
    click.option(
        "--batch-rule",
        type=_choice(BatchRule),
        help="How the batch grows with the number of model copies.",
    ),
    click.option("--epochs", type=float, help="Passes over the data set. Default: the workload's."),
    click.option(
        "--to-target",
        is_flag=True,
        help="Train for the epochs that the workload's convergence curve gives for the batch.",
    ),
    click.option("--precision", type=_choice(Precision), help="Default: the workload's."),
    click.option("--optimizer", type=_choice(Optimizer), help="Default: the workload's."),
    click.option(
        "--gradient-type",
        type=_choice(NumberType),
        help="Type of the gradients. Default: the precision's.",
    ),
    click.option(
        "--state-type",
        type=_choice(NumberType),
        help="Type of the optimizer's states. Default: the precision's.",
    ),
    click.option(
        "--framework",
        type=_choice(Framework),
        help="What launches the kernels; `compiled` is torch.compile or CUDA graphs.",
    ),
    click.option(
        "--power-cap",
        "power_cap_watts",
        type=float,
        metavar="WATTS",
        help="Power limit of each GPU.",
    ),
    click.option(
        "--node-share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Largest of the job's shares of a node's GPUs, processors and memory.",
    ),
    click.option("--tensor", type=int, help="Tensor parallelism: GPUs that share each layer."),
    click.option("--pipeline", type=int, help="Pipeline parallelism: number of stages."),
    click.option(
        "--interleave", type=int, help="Parts of the network on each stage (virtual stages)."
    ),
    click.option("--context", type=int, help="Context parallelism: GPUs that divide the tokens."),
    click.option("--expert", type=int, help="Expert parallelism: GPUs that divide the experts."),
    click.option(
        "--sequence-parallel",
        is_flag=True,
        help="Tensor-parallel GPUs also divide norms and additions.",
    ),
    click.option("--micro-batch", type=int, help="Samples of one micro-batch."),
    click.option("--all-reduce", type=_choice(AllReduce)),
    click.option(
        "--no-overlap",
        is_flag=True,
        help="Start the all-reduce of gradients only after the backward pass.",
    ),
    click.option(
        "--overlap-layers",
        is_flag=True,
        help="Tensor- and expert-parallel communication runs beside the products.",
    ),
    click.option(
        "--recompute",
        type=_choice(Recompute),
        help="Activations that are computed again: of attention (selective), or of all layers.",
    ),
    click.option(
        "--recompute-layers", type=int, help="With full recomputation: so many layers of each GPU."
    ),
    click.option(
        "--sharding",
        type=_choice(Sharding),
        help="What the model copies divide among them: ZeRO stage 1, 2 or 3 (FSDP).",
    ),
    click.option("--shard-group", type=int, help="GPUs that divide one copy (hybrid sharding)."),
    click.option(
        "--no-prefetch",
        is_flag=True,
        help="Gather the weights of a block only when the block before it is done.",
    ),
    click.option(
        "--synchronize",
        type=click.Choice(["step", "micro-batch"]),
        help="Reduce gradients once in a step, or after each micro-batch.",
    ),
    click.option(
        "--shard-optimizer",
        is_flag=True,
        help="Divide the optimizer's state among the model copies (ZeRO stage 1).",
    ),
    click.option("--data", type=click.Choice(["sharded", "whole"])),
    click.option("--scaling", type=click.Choice(["strong", "weak"])),
    click.option("--loader", help="Loading method of the data set."),
    click.option("--startup", "startup_seconds", type=float, metavar="SECONDS"),
    click.option(
        "--jitter", type=float, help="Coefficient of variation of the workers' compute times."
    ),
    click.option(
        "--jitter-persistent", type=float, help="Share of it that stays with a worker for the run."
    ),
    click.option("--jitter-drift", type=float, help="Share of it that drifts from step to step."),
    click.option(
        "--jitter-file",
        type=click.Path(path_type=Path),
        help="Measured compute times of workers, one number a line, to draw jitter from.",
    ),
    click.option("--seed", type=int),
    click.option("--servers", type=int, help="Number of parameter servers (parameter-server)."),
    click.option(
        "--gradient-seconds", type=float, help="Measured time of a gradient (asynchronous)."
    ),
    click.option("--update-seconds", type=float, help="Measured time of an update (asynchronous)."),
    click.option("--first-slaves", type=int, help="Slaves at the start (averaging)."),
    click.option("--packages", type=int, help="Data packages of an epoch (averaging)."),
    click.option("--imbalance", type=float, help="Spread of the packages' sizes (averaging)."),
)


def simulation_options(command: F) -> F:
    """Add the options that describe data, hardware and a plan."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def simulation_inputs(name: str, options: dict[str, Any]) -> tuple[Workload, Cluster, BasePlan]:
    """The workload, the cluster and the plan that the options describe."""
    options = dict(options)
    workload = library.workload(name, library.parse_dimensions(options.pop("dimensions")))
    if samples := options.pop("samples"):
        dataset = workload.dataset.model_copy(update={"samples": samples})
        workload = workload.model_copy(update={"dataset": dataset})
    gpus, node, network = options.pop("gpus"), options.pop("node"), options.pop("network")
    file, storage = options.pop("cluster"), options.pop("storage")
    flops, memory = options.pop("gpu_flops"), options.pop("gpu_memory")
    bandwidth = options.pop("gpu_bandwidth")
    if (flops or memory or bandwidth) and (file or not gpus or not flops):
        raise InputError(
            "the figures of a GPU need --gpus and --gpu-flops", "give --gpus 8xNAME, no --cluster"
        )
    if file:
        cluster = library.cluster(file)
        count = cluster.gpus if gpus is None else _count(gpus, cluster)
    elif gpus:
        count, gpu_name = library.parse_gpus(gpus)
        own_gpu = data_sheet_gpu(gpu_name, flops, memory, bandwidth) if flops else None
        cluster = library.cluster_of(
            gpus, node_name=node, network=network, nodes=options.get("nodes"), own_gpu=own_gpu
        )
        if own_gpu:
            click.echo(
                f"{gpu_name} is known by its data sheet alone: a step takes between 1/{STEP_FACTOR}"
                f" and {STEP_FACTOR} times as long",
                err=True,
            )
    else:
        raise InputError("no hardware given", "give --gpus 8xV100 or --cluster FILE")
    if storage:
        cluster = cluster.model_copy(update={"storage": library.storage(storage)})
    kind, jitter_file = options.pop("kind"), options.pop("jitter_file")
    fields: dict[str, Any] = {"gpus": count}
    if jitter_file:
        fields["jitter_samples"] = _read_numbers(jitter_file)
    for part in ("overlap", "prefetch"):
        if options.pop(f"no_{part}"):
            fields[part] = False
    fields |= {k: v for k, v in options.items() if v is not None and v is not False}
    return workload, cluster, library.plan(kind, fields)


def _count(text: str, cluster: Cluster) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    count, name = library.parse_gpus(text)
    if name != cluster.node.gpu.name:
        raise InputError(f"{cluster.name} has {cluster.node.gpu.name}, not {name}", "give a number")
    return count


def _read_numbers(path: Path) -> list[float]:
    try:
        return [float(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", "write one number a line") from None


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named. Raises ConfigError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def print_wide(table: Table) -> None:
    """Print a table at least 140 columns wide, also into a pipe."""
    width = max(Console().width, 140)
    Console(highlight=False, width=width).print(table)


def progress_bar(text: str) -> Progress:
    """A progress bar on stderr that disappears at the end."""
    return Progress(
        text,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def spinner(text: str) -> Status:
    """A spinner on stderr for work of a second or more without countable steps."""
    return Console(stderr=True).status(text)
