"""What requests have in common: names as people write them, hardware, paging."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from carme.predict.estimates import FrozenModel

WorkloadName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$")]
GpuText = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ ×*-]{0,63}$")]
SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class HardwareQuery(FrozenModel):
    """A number of a known GPU (`8xV100`), or GPUs of a partition of this cluster."""

    gpus: GpuText | None = None
    """How many of which, such as `8xV100` or `1xA100`."""
    node: Word | None = None
    """The kind of node, if not the GPU's usual one."""
    network: Word | None = None
    partition: SlurmName | None = None
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Of the partition's GPUs."""

    @model_validator(mode="after")
    def _one_way(self) -> HardwareQuery:
        if (self.gpus is None) == (self.partition is None):
            raise ValueError("give either gpus (such as 8xV100) or partition")
        return self


class PageQuery(FrozenModel):
    """Paging of lists."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: (
        Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?-[0-9a-z-]{1,64}$")] | None
    ) = None
    """`next` of the page before."""
