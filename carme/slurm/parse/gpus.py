"""A job's GPUs, from the most precise of its fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme.slurm.gres import UNTYPED, gpus_of_gres, gpus_of_tres, parse_gres, parse_tres
from carme.slurm.snapshot import total_gpus


@dataclass(frozen=True, slots=True)
class GpuRequestFields:
    """What a job asked for, in the fields that hold it."""

    per_job: str = ""
    per_node: str = ""
    per_task: str = ""
    nodes: int = 1
    tasks: int = 1


def job_gpus(detail: Sequence[str], tres: str, request: GpuRequestFields) -> dict[str, int]:
    """GPUs per type: what each node says it gave, else the TRES, else the request.

    Sites that do not account for GPU types have `gres/gpu=4` alone in the TRES; the request then
    names the type, if it adds up.
    """
    given = total_gpus(gpus_of_gres(parse_gres(line)) for line in detail)
    if given:
        return {kind: count for kind, count in given.items() if count}
    counted = gpus_of_tres(parse_tres(tres))
    asked = _asked(request)
    if UNTYPED in counted and UNTYPED not in asked:
        return asked if sum(asked.values()) == sum(counted.values()) else counted
    return counted or asked


def job_gpu_indices(detail: Sequence[str], nodes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Node to GPU indices; `detail` has a line for each node, in their order."""
    if len(detail) != len(nodes):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for node, line in zip(nodes, detail, strict=True):
        indices = [i for gres in parse_gres(line) if gres.name == "gpu" for i in gres.indices]
        if indices:
            found[node] = tuple(sorted(indices))
    return found


def _asked(request: GpuRequestFields) -> dict[str, int]:
    for text, factor in (
        (request.per_job, 1),
        (request.per_node, max(request.nodes, 1)),
        (request.per_task, max(request.tasks, 1)),
    ):
        gpus = gpus_of_gres(parse_gres(text))
        if gpus:
            return {kind: count * factor for kind, count in gpus.items()}
    return {}


def indices_by_type(gres_used: str) -> Mapping[str, tuple[int, ...]]:
    """GPU type to the indices in use on a node."""
    return {g.type: g.indices for g in parse_gres(gres_used) if g.name == "gpu" and g.indices}
