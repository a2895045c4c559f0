"""Collectors: each reads one source and makes samples of the reading."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

from carme.config import ExporterSettings
from carme.node import hook
from carme_monitoring.metrics import LabelledCounter, Metric, Samples

if TYPE_CHECKING:
    from carme_monitoring.collectors.power import PowerPoller
    from carme_monitoring.collectors.slurm import SchedulerReader, SlurmView
    from carme_monitoring.gpus import GpuSource
    from carme_monitoring.sampler import GpuSampler

Mode = Literal["node", "controller"]
Reading = TypeVar("Reading")


@dataclass(frozen=True)
class Roots:
    """Roots of the kernel's files, and clocks; tests pass their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")
    now_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    time_s: Callable[[], float] = time.time


@dataclass(frozen=True)
class CollectorContext:
    """The settings, roots and sources that collectors use."""

    node: str = ""
    config: ExporterSettings = field(default_factory=ExporterSettings)
    roots: Roots = Roots()
    value_errors: LabelledCounter = field(default_factory=LabelledCounter)
    """Counts single values that a source did not give, by collector and value."""
    gpus: "GpuSource | None" = None
    sampler: "GpuSampler | None" = None
    power_pollers: "Sequence[PowerPoller]" = ()
    view: "SlurmView | None" = None
    scheduler: "SchedulerReader | None" = None

    @cached_property
    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return hook.boot_id(str(self.roots.proc))


class Stage(IntEnum):
    """When a collector is read."""

    COUNTERS = 1
    """First at every charge: the moment of this read is the one up to which energy is charged."""
    CHARGED = 2
    """At every charge (a collection, a job's start or end), right after the counters."""
    PUBLISHED = 3
    """At collections only, before the charge."""


class Collector(Generic[Reading]):
    """One source. A module in `collectors` with a subclass is all that a new one needs.

    The pipeline reads each collector once per collection, in a thread with a time limit. A read
    that fails or hangs counts as a failure of this collector and leaves the others alone.
    """

    name: ClassVar[str]
    """The label `collector` of its success and failures. Collectors of one device share a name,
    and with it a thread."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The families that `add_samples` fills."""
    modes: ClassVar[tuple[Mode, ...]] = ("node",)
    requires: ClassVar[str] = ""
    """The part of the context without which it is not used, such as `gpus`."""
    stage: ClassVar[Stage] = Stage.PUBLISHED
    order: ClassVar[int] = 100
    """Within a stage, lower ones are read first: what changes fastest goes before the rest."""

    def __init__(self, context: CollectorContext) -> None:
        self.context = context

    def read(self) -> Reading:
        """Read the source. Raises if there is no value; may hang if the source does not answer.

        None stands for a read that failed, so it is not a reading.
        """
        raise NotImplementedError

    def add_samples(self, out: Samples, reading: Reading) -> None:
        """The samples of a reading."""

    def add_failure(self, out: Samples) -> None:
        """The samples when there is no reading; most collectors have none."""

    def save(self) -> Any:
        """What is kept over a restart, as JSON values; None for nothing."""
        return None

    def restore(self, saved: Any) -> None:
        """Restore what `save` returned, after a restart of the exporter but not of the node."""


class Readings:
    """What the collectors read for one charge or collection."""

    def __init__(self, at_ns: int = -1) -> None:
        self.at_ns = at_ns
        """When the counters were read."""
        self._by_collector: dict[type[Collector[Any]], Any] = {}

    def put(self, collector: type[Collector[Reading]], reading: Reading | None) -> None:
        """Keep a reading, or replace it by the part of it that counts."""
        self._by_collector[collector] = reading

    def of(self, collector: type[Collector[Reading]]) -> Reading | None:
        """The collector's reading; None when it failed or was not read."""
        return cast("Reading | None", self._by_collector.get(collector))

    def update(self, other: "Readings") -> None:
        """Take over the readings of `other`."""
        self._by_collector |= other._by_collector
