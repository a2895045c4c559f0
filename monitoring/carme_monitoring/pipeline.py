"""The exporter's pipeline: read every collector once, account for it, make samples of it."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from carme import __version__
from carme_monitoring.accounting import accounting_samples, exporter_state
from carme_monitoring.accounting.accounting_samples import add_accounting_samples
from carme_monitoring.accounting.exporter_state import ExporterState
from carme_monitoring.accounting.node_accounting import NodeAccounting
from carme_monitoring.collector import Collector, CollectorContext, Mode, Readings, Stage
from carme_monitoring.collectors import collector_types, make_collectors
from carme_monitoring.collectors.gpu import GpuCollector, GpuEnergyCollector
from carme_monitoring.guard import Guards
from carme_monitoring.metrics import EXPORTER, Metric, Samples
from carme_monitoring.profiles import PROFILES, ProfileContext, tables

_GROUPS = (
    "Exporter", "GPU", "Power", "Node", "Jobs on the node", "Use of the node by jobs",
    "GPUs and traffic of jobs", "GPU allocations", "Energy", "Waste", "Owners", "Bursts",
    "Cluster (controller mode)",
)  # fmt: skip
"""The order of an answer and of the reference; further groups come last."""
_POSITIONS = {group: place for place, group in enumerate(_GROUPS)}
TABLE: tuple[Metric, ...] = tuple(
    sorted(
        (
            *EXPORTER,
            *(metric for kind in collector_types() for metric in kind.metrics),
            *accounting_samples.METRICS,
        ),
        key=lambda metric: _POSITIONS.get(metric.group, len(_GROUPS)),
    )
)
"""Every metric of the exporter, from the tables of the collectors and of the accounting."""
BY_NAME = {metric.name: metric for metric in TABLE}


class Pipeline:
    """The controller's pipeline: from collectors to samples, without accounting."""

    mode: ClassVar[Mode] = "controller"

    def __init__(self, context: CollectorContext, guards: Guards | None = None) -> None:
        self.context, self.guards = context, guards or Guards()
        self.collectors = make_collectors(self.mode, context)
        self.table = (*TABLE, *tables(context.config.profiles))
        """Every metric that it may have samples of."""

    def collect(self) -> Samples:
        """Everything under Carme's own names."""
        began, out = time.monotonic(), Samples()
        self.guards.begin()
        out.add("carme_exporter_info", (__version__, self.mode, self.context.node), 1)
        self._collect(out)
        self.guards.add_samples(out)
        out.add("carme_exporter_collection_seconds", (), round(time.monotonic() - began, 6))
        collected_at = round(self.context.roots.time_s(), 3)
        out.add("carme_exporter_collected_timestamp_seconds", (), collected_at)
        return out

    def add_profiles(self, out: Samples) -> None:
        """The same under the names of the profiles that are switched on."""
        for name in self.context.config.profiles:
            PROFILES[name].add(out, self._profile_context())

    def _collect(self, out: Samples) -> None:
        self._publish(self._read(*Stage), out)

    def _read(self, *stages: Stage, kind: type[Collector[Any]] = Collector) -> Readings:
        readings = Readings()
        for collector in self.collectors:
            if collector.stage in stages and isinstance(collector, kind):
                readings.put(type(collector), self.guards.run(collector.name, collector.read))
        return readings

    def _publish(self, readings: Readings, out: Samples) -> None:
        for collector in self.collectors:
            name, reading, samples = collector.name, readings.of(type(collector)), None
            if reading is not None:
                samples = self.guards.compute(
                    name, partial(_samples, collector.add_samples, reading)
                )
            if samples is None:
                samples = self.guards.compute(name, partial(_samples, collector.add_failure))
            if samples is not None:
                out.update(samples)

    def _profile_context(self) -> ProfileContext:
        return ProfileContext()


def _samples(add: Callable[..., None], *reading: Any) -> Samples:
    samples = Samples()
    add(samples, *reading)
    return samples


class NodePipeline(Pipeline):
    """A node's pipeline. `settle` charges up to now; `collect` does too and returns all samples."""

    mode = "node"

    def __init__(self, context: CollectorContext, guards: Guards | None = None) -> None:
        super().__init__(context, guards)
        for collector in self.collectors:
            self.guards.add(collector.name)
        self._lock = threading.Lock()
        self._state_path = context.config.state / f"{context.node}.json"
        self._state_failures = 0
        self.accounting = NodeAccounting(context.config, self._restore())

    def settle(self, jobid: int | None = None) -> bool:
        """Charge everything up to this moment. `jobid`: its prolog or epilog runs right now.

        True when energy counters were read, so that the hook need not read them itself.
        """
        has_slots = bool(self.accounting.slots)
        gpus = Readings() if has_slots else self._read(Stage.PUBLISHED, kind=GpuCollector)
        # A job is waiting: its counters are read even while a collection is under way.
        counters = self._read_counters() if jobid is not None else None
        with self._lock:
            return self._charge(gpus, counters, jobid)

    def _collect(self, out: Samples) -> None:
        published = self._read(Stage.PUBLISHED)
        with self._lock:
            self._charge(published, None, None)
            if self.context.sampler:
                self.context.sampler.follow(self.accounting.gpus_of_profiled_jobs())
            self.accounting.compare_records()
            self._publish(published, out)
            activity = self.accounting.take_gpu_activity()
            add_accounting_samples(out, self.context.node, self.accounting, activity)
            out.add("carme_exporter_state_failures_total", (), self._state_failures)

    def _charge(self, readings: Readings, counters: Readings | None, jobid: int | None) -> bool:
        """Read what is charged, add it to `readings`, and charge it."""
        if counters is None or counters.at_ns <= self.accounting.state.previous.at_ns:
            counters = self._read_counters()  # another charge was quicker
        readings.at_ns = counters.at_ns
        readings.update(counters)
        # Reading the rest takes longer, so it comes after the moment up to which energy is charged.
        readings.update(self._read(Stage.CHARGED))
        self.accounting.charge(readings, self.context.roots.time_s(), jobid)
        self._save()
        return self.context.gpus is None or readings.of(GpuEnergyCollector) is not None

    def _read_counters(self) -> Readings:
        readings = self._read(Stage.COUNTERS)
        readings.at_ns = self.context.roots.now_ns()
        return readings

    def _profile_context(self) -> ProfileContext:
        jobs = self.accounting.state.table.jobs
        return ProfileContext(
            self.context.node, {str(jobid): job.uid for jobid, job in jobs.items()}
        )

    def _save(self) -> None:
        states = [(type(collector).__name__, collector.save()) for collector in self.collectors]
        content = {
            "node": self.context.node,
            "boot_id": self.context.boot_id,
            **self.accounting.state.save(),
            "collectors": {name: state for name, state in states if state is not None},
        }
        try:
            exporter_state.write(self._state_path, content)
        except OSError:
            self._state_failures += 1

    def _restore(self) -> ExporterState:
        """The state in the file; a new one when it is damaged or of another version."""
        config = self.context.config
        saved = exporter_state.read(self._state_path)
        if saved is None:
            return ExporterState.new(config)
        is_same_boot = saved.get("boot_id") == self.context.boot_id
        try:
            state = ExporterState.restored(saved, config, is_same_boot)
            states = saved.get("collectors", {}) if is_same_boot else {}
            for collector in self.collectors:
                if (name := type(collector).__name__) in states:
                    collector.restore(states[name])
        except exporter_state.DAMAGED:
            self.collectors = make_collectors(self.mode, self.context)
            return ExporterState.new(config)
        return state
