"""Which rows of the published tables count: a fixed rule on their columns."""

from __future__ import annotations

import re
from typing import NamedTuple

from carme import library
from carme.measurements.names import find_model, find_precision
from carme.measurements.rows import PublishedRow

RULE = (
    "A row is eligible if it is not marked doubtful, its throughput can be converted to the time "
    "of a step (not a time to train, not TFLOPs), its GPU is of NVIDIA, AMD or Gaudi, it gives the "
    "number of GPUs, a numeric batch and a precision (MLPerf prints none: taken as mixed and "
    "reported apart), and, for transformers and for throughput in tokens, the sequence length. An "
    "eligible row that is not modelled, or that is refused although it ran, counts as an error of "
    "100 %. Error: |predicted/measured step time - 1|; bias: geometric mean of predicted/measured."
)
_OTHER_DEVICES = re.compile(
    r"tpu|ipu\b|ascend|graphcore|trainium|cerebras|cpu|xeon|knl|^n/?a$|^$", re.IGNORECASE
)
_TRANSFORMER = re.compile(
    r"bert|gpt|llama|transformer|t5|mpt|bart\b|electra|mixtral|qwen|deepseek|nemotron|kimi|opt-",
    re.IGNORECASE,
)
_SAMPLES = re.compile(r"(samples|images|sequences|items|mol)_per_(s|ms)")


class Throughput(NamedTuple):
    """What a unit of throughput counts, and how."""

    item: str
    """`sample`, `token`, `step`, or an item such as `mels` of which a sample has several."""
    per_gpu: bool
    per_second: float
    """Items a second for a throughput of 1."""


def parse_unit(unit: str) -> Throughput | None:
    """What the unit counts; None if a step's time does not follow from it."""
    per_gpu = unit.endswith("_per_gpu")
    unit = unit.removesuffix("_per_gpu")
    if unit == "step_seconds":
        return Throughput("step", per_gpu=False, per_second=1.0)
    if match := re.fullmatch(r"items_per_s\((?:mel|audio)_(frames|samples)\)", unit):
        item = "mels" if match[1] == "frames" else "samples"
        return Throughput(item, per_gpu, 1.0)
    if unit == "mels_per_s":
        return Throughput("mels", per_gpu, 1.0)
    if unit == "tokens_per_s":
        return Throughput("token", per_gpu, 1.0)
    if match := _SAMPLES.fullmatch(unit):
        return Throughput("sample", per_gpu, 1e3 if match[2] == "ms" else 1.0)
    return None


def is_mlperf(row: PublishedRow) -> bool:
    """MLPerf's results print no precision."""
    return "training_results" in row.text("source_repo")


def is_transformer(row: PublishedRow) -> bool:
    """By the row's shape, by the library's description or by its name."""
    if row.number("heads"):
        return True
    model = find_model(row)
    if model and model.workload in library.names("workloads"):
        return (
            library.workload(model.workload).transformer is not None
            or "transformer" in model.workload
        )
    return bool(_TRANSFORMER.search(row.text("model")))


def why_not_eligible(row: PublishedRow) -> str:
    """The first condition that the row does not meet; empty if it is eligible."""
    if row.text("doubtful") not in ("", "0"):
        return "doubtful"
    unit = parse_unit(row.text("throughput_unit"))
    if unit is None:
        return f"unit {row.text('throughput_unit')}"
    if _OTHER_DEVICES.search(row.text("gpu")):
        return "device of another kind"
    if row.count("gpus") < 1:
        return "no number of GPUs"
    if not (row.number("micro_batch") or row.number("global_batch")):
        return "no numeric batch"
    if find_precision(row.text("precision")) is None and not is_mlperf(row):
        return "no precision"
    model = find_model(row)
    known_items = model.items if model else {}
    if not row.number("seq_len") and (
        is_transformer(row) or (unit.item == "token" and "tokens" not in known_items)
    ):
        return "no sequence length"
    if unit.item in ("mels", "samples") and unit.item not in known_items:
        return f"unit {row.text('throughput_unit')}"
    return ""
