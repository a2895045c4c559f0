"""A published row as the simulator's input: workload, cluster and plan, and its measured step."""

from __future__ import annotations

import re
from functools import cache
from math import gcd
from typing import Any, NamedTuple

from pydantic import ValidationError

from carme import library
from carme.errors import CarmeError, InputError
from carme.measurements.eligibility import is_mlperf, parse_unit
from carme.measurements.names import (
    ModelName,
    find_gpu,
    find_interconnect,
    find_model,
    find_precision,
    software_defaults,
)
from carme.measurements.rows import PublishedRow
from carme.simulator.frameworks import FRAMEWORKS
from carme.simulator.hardware import Cluster, NodeModel
from carme.simulator.plans import Synchronous
from carme.simulator.transformer import Transformer
from carme.simulator.workload import Dataset, Workload

_FORWARD_BACKWARD = re.compile(r"no optimizer step|forward\+backward only", re.IGNORECASE)
_PAIR_LINKS = {
    "pcie-3": "nvlink-bridge-2",
    "pcie-4": "nvlink-bridge-3",
}


class PublishedRun(NamedTuple):
    """What to simulate for a row."""

    workload: Workload
    cluster: Cluster
    plans: tuple[Synchronous, ...]
    """In order; the first that fits in memory is meant. More than one where the row does not say
    what is recomputed."""
    measured_seconds: float
    """Of one optimizer step."""
    updates: bool
    """Whether the step includes the optimizer's update."""


class NotModelledError(InputError):
    """A row that the simulator does not describe; the message says why."""


def published_run(row: PublishedRow) -> PublishedRun:
    """The run of an eligible row. Raises NotModelledError if a part of it is not known."""
    gpu = find_gpu(row.text("gpu"), row.text("form"), row.number("gpu_memory_gb"))
    if gpu is None:
        raise NotModelledError(f"GPU {row.text('gpu')}")
    model = find_model(row)
    if "offload" in row.text("zero_stage_or_sharding"):
        raise NotModelledError("offload to the host")
    workload = _workload(row, model)
    cluster = _cluster(row, gpu)
    fields = _plan_fields(row, cluster)
    if workload.transformer:
        # Embedding and output may take the place of a layer.
        most = max((workload.transformer.layers + 2) // fields["pipeline"], 1)
        fields["interleave"] = min(fields["interleave"], most)
        if workload.transformer.experts and not row.text("ep"):
            # Not printed: as many GPUs as can share the experts.
            copies = fields["gpus"] // (fields["tensor"] * fields["pipeline"])
            fields["expert"] = gcd(copies, workload.transformer.experts.count)
    return PublishedRun(
        workload=workload,
        cluster=cluster,
        plans=_plans(row, workload, fields),
        measured_seconds=measured_seconds(row, fields["batch"], model),
        updates=not _FORWARD_BACKWARD.search(row.text("notes")),
    )


def measured_seconds(row: PublishedRow, batch: int, model: ModelName | None) -> float:
    """Seconds of one step with this global batch."""
    unit = parse_unit(row.text("throughput_unit"))
    throughput = row.number("throughput")
    if unit is None or not throughput:
        raise NotModelledError(f"unit {row.text('throughput_unit')}")
    if unit.item == "step":
        return throughput
    items = 1.0
    known_items = model.items if model else {}
    if unit.item == "token":
        items = row.number("seq_len") or known_items.get("tokens", 0)
    elif unit.item != "sample":
        items = known_items[unit.item]
    rate = throughput * unit.per_second * (row.count("gpus") if unit.per_gpu else 1)
    return batch * items / rate


def _workload(row: PublishedRow, model: ModelName | None) -> Workload:
    sequence = row.count("seq_len")
    if sequence and row.number("hidden") and row.number("layers"):
        return _transformer_of_columns(row, {})
    if model is None and sequence and "gpt" in row.text("model").lower() and row.number("params"):
        return _transformer_of_columns(row, _gpt_sizes(row))
    if model is None or model.workload not in library.names("workloads"):
        raise NotModelledError(f"model {row.text('model')}")
    workload = _without_input(model.workload)
    if not workload.transformer:
        return workload
    fields = dict(model.fields)
    if sequence:
        fields["sequence"] = sequence
    if row.text("attention"):
        fields["attention"] = _attention(row)
    if workload.transformer.attention != "unfused":
        fields |= software_defaults(row).transformer
    return _with_transformer(model.workload, tuple(sorted(fields.items())))


@cache
def _without_input(name: str) -> Workload:
    """The bundled workload without reading: published runs use synthetic or cached data."""
    workload = library.workload(name)
    if workload.measured:
        raise NotModelledError(f"model {name} is known by measured steps only")
    dataset = workload.dataset.model_copy(update={"sample_bytes": 0.0, "loaders": {}})
    return workload.model_copy(update={"dataset": dataset})


@cache
def _with_transformer(name: str, fields: tuple[tuple[str, Any], ...]) -> Workload:
    workload = _without_input(name)
    transformer = workload.transformer
    if transformer is None:
        return workload
    changed = transformer.model_dump(exclude_unset=True) | dict(fields)
    data = workload.model_dump(exclude_unset=True, exclude={"transformer"})
    try:
        return Workload.model_validate(data | {"transformer": changed, "name": name})
    except ValidationError as error:
        raise NotModelledError(f"shape: {error.errors()[0]['msg']}") from None


def _attention(row: PublishedRow) -> str:
    return (
        "flash-2" if re.search(r"flash|fused attention|cudnn", row.text("attention")) else "unfused"
    )


def _gpt_sizes(row: PublishedRow) -> dict[str, int]:
    """Layers and hidden width of a GPT of which only the parameters are printed: 24 layers at 1.3
    billion and 96 at 175 billion as in Brown et al. 2020, and a multiple of the pipeline's stages.
    The products depend little on the proportions."""
    parameters = row.number("params") or 0.0
    stages = (row.count("pp", 1) or 1) * (row.count("vp", 1) or 1)
    layers = max(round(24 * (parameters / 1.3e9) ** 0.283 / stages), 1) * stages
    width = 128 * (row.count("tp", 1) or 1)
    hidden = row.count("hidden") or max(round((parameters / 12 / layers) ** 0.5 / width), 1) * width
    return {"layers": layers, "hidden": hidden}


def _heads(hidden: int, tensor: int) -> int:
    """About one head for each 128 of the width, as many on each tensor-parallel GPU."""
    divisors = [n for n in range(tensor, hidden // 32 + 1, tensor) if hidden % n == 0]
    return min(divisors, key=lambda n: abs(hidden / n - 128), default=1)


def _transformer_of_columns(row: PublishedRow, sizes: dict[str, int]) -> Workload:
    name = row.text("model").lower()
    hidden = sizes.get("hidden") or row.count("hidden")
    fields: dict[str, Any] = {
        "hidden": hidden,
        "layers": sizes.get("layers") or row.count("layers"),
        "heads": row.count("heads") or _heads(hidden, row.count("tp", 1) or 1),
        "sequence": row.count("seq_len"),
        "vocabulary": row.count("vocab") or 50257,
        "attention": _attention(row) if row.text("attention") else "flash-2",
    }
    if row.number("ffn"):
        fields["feed_forward"] = row.count("ffn")
    if row.number("kv_heads"):
        fields["key_value_heads"] = row.count("kv_heads")
    if "llama" in name or "mistral" in name:
        fields |= {"gated": True, "norm": "rms", "biases": False, "tied": False}
        fields |= {"position_encoding": "rotary", "dropout": False}
        fields["fused_loss"] = True
    if "bert" in name:
        fields["causal"] = False
    if fields["attention"] != "unfused":
        fields |= software_defaults(row).transformer
    try:
        transformer = Transformer.model_validate(fields)
    except ValidationError as error:
        raise NotModelledError(f"shape: {error.errors()[0]['msg']}") from None
    return Workload(
        name="published",
        transformer=transformer,
        dataset=Dataset(samples=10**9, input_elements=transformer.sequence),
        optimizer="adam",
        precision="bf16",
    )


def _cluster(row: PublishedRow, gpu: str) -> Cluster:
    gpus = row.count("gpus")
    node = _node(gpu, row.text("interconnect"), gpus == 2)
    per_node = min(row.count("gpus_per_node") or min(node.gpus, gpus), gpus)
    if row.count("nodes") > 1:
        per_node = -(-gpus // row.count("nodes"))
    node = node.model_copy(update={"gpus": per_node})
    if "nn.DataParallel" in row.text("notes"):
        # One Python process launches the forward passes of all GPUs, a thread for each GPU its
        # backward pass, which has twice the kernels.
        launch = node.launch_seconds or FRAMEWORKS["pytorch"].host_seconds
        node = node.model_copy(update={"launch_seconds": launch * (gpus + 2) / 3})
    return Cluster(name="published", node=node, nodes=-(-gpus // per_node))


@cache
def _node(gpu: str, interconnect: str, is_pair: bool) -> NodeModel:
    node = library.cluster_of(gpu).node
    entry = find_interconnect(interconnect)
    if entry and entry.node:
        node = library.node(entry.node).model_copy(update={"gpu": library.gpu(gpu)})
    if entry and entry.network:
        update = {"network": library.link(entry.network), "adapters": entry.adapters}
        node = node.model_copy(update=update)
    if entry and entry.pair_link and is_pair and node.gpu_link.name in _PAIR_LINKS:
        # A bridge joins two boards; a ring over more passes the host.
        bridge = library.link(_PAIR_LINKS[node.gpu_link.name])
        node = node.model_copy(update={"gpu_link": bridge})
    return node


def _plan_fields(row: PublishedRow, cluster: Cluster) -> dict[str, Any]:
    gpus = row.count("gpus")
    tensor, pipeline = row.count("tp", 1) or 1, row.count("pp", 1) or 1
    context = row.count("cp", 1) or 1
    copies = max(gpus // (tensor * pipeline * context), 1)
    micro_batch = row.count("micro_batch")
    accumulated = row.count("grad_accum")
    if micro_batch >= 1024 and accumulated > 1 and micro_batch % accumulated == 0:
        micro_batch //= accumulated  # printed is the batch of a GPU over all accumulated passes
    batch = row.count("global_batch") or micro_batch * copies * (accumulated or 1)
    defaults = software_defaults(row)
    fields = defaults.plan | {
        "gpus": gpus,
        "batch": batch,
        "micro_batch": micro_batch or None,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "expert": row.count("ep", 1) or 1,
        "interleave": row.count("vp", 1) or 1,
        "precision": _precision(row, cluster, defaults.recipes),
    }
    if cluster.nodes > 1:
        fields["nodes"] = cluster.nodes
    fields |= _sharding(row.text("zero_stage_or_sharding"))
    if row.text("compile_or_graphs"):
        fields["framework"] = "compiled"
    if "nn.DataParallel" in row.text("notes"):
        fields["overlap"] = False
    if re.search(r"\blora\b", row.text("notes") + row.text("model"), re.IGNORECASE):
        fields["adapters"] = True
    return fields


def _precision(row: PublishedRow, cluster: Cluster, recipes: dict[str, str]) -> str:
    recipe = find_precision(row.text("precision"))
    peak = cluster.node.gpu.peak_flops
    if recipe is None:
        if not is_mlperf(row):
            raise NotModelledError(f"precision {row.text('precision')!r}")
        recipe = "fp16"
    if recipe in ("fp32", "tf32"):
        # Since 2020 frameworks compute fp32 as tf32 where the GPU can.
        return "tf32" if "tf32" in peak else "fp32"
    return recipes.get(recipe, recipe)


def _sharding(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if re.search(r"ZeRO-1", text):
        fields["sharding"] = "optimizer"
    elif re.search(r"ZeRO-2|SHARD_GRAD_OP", text):
        fields["sharding"] = "gradients"
    elif re.search(r"ZeRO-3|FULL_SHARD|FSDP=1|FSDP shard group", text):
        fields["sharding"] = "weights"
    if (match := re.search(r"shard group (\d+)", text)) and int(match[1]) > 1:
        fields["shard_group"] = int(match[1])
    return fields


def _plans(
    row: PublishedRow, workload: Workload, fields: dict[str, Any]
) -> tuple[Synchronous, ...]:
    stated = row.text("recompute").lower()
    choices: tuple[str, ...] = (stated,) if stated else ("none",)
    if not stated and workload.transformer and row.text("tp"):
        choices = ("none", "selective", "full")
    plans = []
    for recompute in choices:
        try:
            plan = library.plan("synchronous", fields | {"recompute": recompute})
        except CarmeError as error:
            raise NotModelledError(f"plan: {error.message}") from None
        if isinstance(plan, Synchronous):
            plans.append(plan)
    return tuple(plans)
