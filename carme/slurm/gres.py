"""GPUs in Slurm's many spellings: GRES (`gpu:a100:2(IDX:0-1)`) and TRES (`gres/gpu:a100=2`)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from carme.errors import InputError
from carme.slurm.hostlist import parse_indices
from carme.units import parse_memory_bytes

UNTYPED = ""
"""The type of GPUs that a site counts without their type (`gpu:4`)."""

_EMPTY = {"", "(null)", "n/a", "none"}
_COMMA = re.compile(r",(?![^()]*\))")  # outside parentheses
_DETAIL = re.compile(r"\(([^()]*)\)")
_COUNT = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True, slots=True)
class Gres:
    """One resource: name (`gpu`, `shard`), type or UNTYPED, count, and its indices if reported."""

    name: str
    type: str
    count: int
    indices: tuple[int, ...] = ()


@lru_cache(maxsize=4096)  # the nodes of a cluster repeat a few texts
def parse_gres(text: str) -> tuple[Gres, ...]:
    """The resources in a GRES list of a node, a job or a request; unknown forms are left out."""
    items = _COMMA.split(text.replace(":(null):", ":"))
    parsed = (_parse_item(item) for item in items)
    return tuple(gres for gres in parsed if gres)


def parse_tres(text: str) -> dict[str, str]:
    """The pairs in a TRES list such as `cpu=4,mem=16G,gres/gpu:a100=2`."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {key.strip(): value.strip() for key, _, value in pairs}


def gpus_of_gres(items: Iterable[Gres]) -> dict[str, int]:
    """GPUs per type in `items`; shards and other resources do not count."""
    totals: dict[str, int] = {}
    for item in items:
        if item.name == "gpu":
            totals[item.type] = totals.get(item.type, 0) + item.count
    return totals


def gpus_of_tres(tres: Mapping[str, str]) -> dict[str, int]:
    """GPUs per type in `tres`; those beyond the typed ones are UNTYPED."""
    typed: dict[str, int] = {}
    total = 0
    for key, value in tres.items():
        name, _, kind = key.partition(":")
        if name == "gres/gpu":
            if kind:
                typed[kind] = _count(value)
            else:
                total = _count(value)
    rest = total - sum(typed.values())
    counts = {**typed, UNTYPED: rest} if rest > 0 else typed
    return {kind: count for kind, count in counts.items() if count}


def memory_of_tres(tres: Mapping[str, str]) -> int:
    """Bytes of `mem`, 0 where there is none; a number without a unit is MiB, as in Slurm."""
    try:
        return parse_memory_bytes(tres.get("mem", "0"), default_unit="M")
    except InputError:
        return 0


def free_gpus(total: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """The GPUs left per type. Used GPUs without a type are taken from the types in their order."""
    free = {kind: count - used.get(kind, 0) for kind, count in total.items()}
    untyped = sum(count for kind, count in used.items() if kind not in total)
    for kind in free:
        taken = min(max(free[kind], 0), untyped)
        free[kind] = max(free[kind], 0) - taken
        untyped -= taken
    return free


def total_gpus(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum per type."""
    total: dict[str, int] = {}
    for part in parts:
        for kind, count in part.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _parse_item(item: str) -> Gres | None:
    details = _DETAIL.findall(item)
    core = _DETAIL.sub("", item).strip()
    # Requests carry a prefix in older (`gres:gpu:2`) and newer (`gres/gpu:2`) releases.
    core = core.removeprefix("gres/").removeprefix("gres:")
    if core.lower() in _EMPTY:
        return None
    core, _, equals = core.partition("=")
    fields = [field for field in core.split(":") if field not in {"no_consume", ""}]
    if not fields:
        return None
    name = fields.pop(0)
    if equals:
        fields.append(equals)
    count = 1
    if fields and _COUNT.fullmatch(fields[-1]):
        count = _count(fields.pop())
    indices: tuple[int, ...] = ()
    for detail in details:
        if detail.upper().startswith("IDX:"):
            indices = parse_indices(detail[4:])
    return Gres(name, ":".join(fields) or UNTYPED, count, indices)


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    return int(match[1][:18]) * _FACTOR[match[2].upper()] if match else 0
