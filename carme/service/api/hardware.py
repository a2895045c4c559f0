"""`hardware`: GPUs with known figures, and which of them this cluster has."""

from __future__ import annotations

from carme import library
from carme.errors import CarmeError, MissingError
from carme.predict.cluster_hardware import known_gpu
from carme.service.context import ServiceContext, current_context
from carme.service.endpoints import Api
from carme.service.models import HardwareItem, HardwareList

api = Api()


@api.endpoint("GET", "/hardware")
def list_hardware() -> HardwareList:
    """GPUs (and CPUs) with known figures, and which of them this cluster has."""
    slurm_types, notes = _cluster_gpus(current_context())
    items = []
    for name in library.names("gpus"):
        gpu = library.gpu(name)
        items.append(
            HardwareItem(
                name=name, title=gpu.title, kind=gpu.kind, memory_bytes=gpu.memory_bytes,
                peak_flops=dict(gpu.peak_flops), idle_watts=gpu.power.idle_watts,
                limit_watts=gpu.power.limit_watts, here=tuple(slurm_types.get(name, ())),
            )
        )  # fmt: skip
    return HardwareList(items=tuple(items), notes=tuple(notes))


def _cluster_gpus(context: ServiceContext) -> tuple[dict[str, list[str]], list[str]]:
    """The cluster's GPU types in Slurm by known name, and notes on types without figures."""
    try:
        types = context.cluster.snapshot().gpus_total()
    except CarmeError as error:
        return {}, [f"the GPUs of this cluster are not known now: {error.message}"]
    by_name: dict[str, list[str]] = {}
    notes = []
    for slurm_type in types:
        try:
            name = known_gpu(slurm_type, context.config.service.hardware).name
        except MissingError as error:
            notes.append(str(error))
        else:
            by_name.setdefault(name, []).append(slurm_type)
    return by_name, notes
