"""The exporter's state, which one file keeps over restarts."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from carme.config import ExporterSettings
from carme_monitoring.accounting.counters import JobCounters, UserCounters
from carme_monitoring.accounting.job_table import JobTable
from carme_monitoring.collectors.host import HostReading
from carme_monitoring.collectors.jobs import JobUsage
from carme_monitoring.collectors.network import Traffic
from carme_monitoring.energy.accountant import EnergyAccountant


@dataclass
class PreviousReading:
    """The readings of the last charge; a new one has none."""

    at_ns: int = -1
    busy_seconds: float | None = None
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    cpu_rate: dict[int, float] = field(default_factory=dict)
    traffic: tuple[int, int] | None = None

    def seconds(self, at_ns: int) -> float:
        """Seconds from the last charge to `at_ns`; 0 if there was none."""
        return max(0.0, (at_ns - self.at_ns) / 1e9) if self.at_ns >= 0 else 0.0

    def fraction(self, from_ns: int, to_ns: int, at_ns: int) -> float:
        """The part of the time since the last charge that is between the two; 0 without one."""
        if self.at_ns < 0 or at_ns <= self.at_ns:
            return 0.0
        return max(0, to_ns - max(from_ns, self.at_ns)) / (at_ns - self.at_ns)

    def busy_gain(self, host: HostReading) -> float | None:
        """Processor time of the whole node since the last charge; None before the first."""
        if self.busy_seconds is None:
            return None
        return max(0.0, host.busy_seconds - self.busy_seconds)

    def cpu_gains(
        self, uses: Mapping[int, JobUsage], live: Iterable[int], at_ns: int
    ) -> dict[int, float]:
        """Processor time by job since the last charge.

        A job's cgroup is gone before its epilog runs. Its last seconds are counted at its last
        rate; otherwise they would be charged to the system.
        """
        gains = {
            jobid: max(0.0, use.cpu_seconds - self.cpu_seconds.get(jobid, 0.0))
            for jobid, use in uses.items()
            if use.cpu_seconds is not None
        }
        for jobid in live:
            if jobid not in gains and jobid in self.cpu_rate:
                gains[jobid] = self.cpu_rate[jobid] * self.seconds(at_ns)
        return gains

    def traffic_gain(self, traffic: Traffic | None) -> tuple[int, int] | None:
        """Bytes received and sent since the last charge; None if either reading is missing."""
        if traffic is None or self.traffic is None:
            return None
        received, sent = self.traffic
        return max(0, traffic.receive_bytes - received), max(0, traffic.send_bytes - sent)

    def remember(
        self,
        at_ns: int,
        uses: Mapping[int, JobUsage],
        host: HostReading | None,
        traffic: Traffic | None,
    ) -> None:
        """Keep these readings for the next charge; the older one stays where one failed."""
        seconds = self.seconds(at_ns)
        for jobid, use in uses.items():
            if use.cpu_seconds is None:
                continue
            if jobid in self.cpu_seconds and seconds > 0:
                gained = max(0.0, use.cpu_seconds - self.cpu_seconds[jobid])
                self.cpu_rate[jobid] = gained / seconds
            self.cpu_seconds[jobid] = use.cpu_seconds
        self.at_ns = at_ns
        if host:
            self.busy_seconds = host.busy_seconds
        if traffic:
            self.traffic = (traffic.receive_bytes, traffic.send_bytes)

    def forget(self, jobid: int) -> None:
        """Forget a job whose series have ended."""
        self.cpu_seconds.pop(jobid, None)
        self.cpu_rate.pop(jobid, None)

    def after_reboot(self) -> None:
        """Forget everything: the clock and all counters begin again."""
        for name, value in vars(PreviousReading()).items():
            setattr(self, name, value)


VERSION = 3
DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What restoring raises when the file is of another version, or damaged."""


@dataclass
class ExporterState:
    """Everything that the accounting keeps over a restart, under the names of these fields."""

    energy: EnergyAccountant = field(default_factory=EnergyAccountant)
    table: JobTable = field(default_factory=JobTable)
    job_counters: JobCounters = field(default_factory=JobCounters)
    user_counters: UserCounters = field(default_factory=UserCounters)
    previous: PreviousReading = field(default_factory=PreviousReading)

    @property
    def parts(self) -> list[Any]:
        return [getattr(self, part.name) for part in fields(self)]

    @classmethod
    def new(cls, config: ExporterSettings) -> Self:
        """The state of a node that was never measured."""
        return cls().configured(config)

    @classmethod
    def restored(
        cls, saved: Mapping[str, Any], config: ExporterSettings, is_same_boot: bool
    ) -> "ExporterState":
        """The saved state. After a reboot there are no jobs, and counters start at zero.

        Raises one of DAMAGED when the content cannot be used; nothing is restored then.
        """
        content = {part.name: saved[part.name] for part in fields(cls)}
        state = _ADAPTER.validate_python(content)
        state.configured(config)
        if not is_same_boot:
            for part in state.parts:
                part.after_reboot()
        return state

    def configured(self, config: ExporterSettings) -> Self:
        """The same state, with the times of the configuration."""
        self.energy.max_step_seconds = 4 * config.interval_seconds
        self.table.keep_seconds = config.keep_seconds
        # Prometheus must read at least once in this time: see carme.config.PrometheusSettings.
        self.user_counters.hold_seconds = 2 * config.interval_seconds
        return self

    def save(self) -> dict[str, Any]:
        """The content of the file."""
        content: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return content

    def forget(self, jobid: int) -> None:
        """Drop a job whose series have ended; the totals of node and user keep its part."""
        for part in self.parts:
            part.forget(jobid)


_ADAPTER = TypeAdapter(ExporterState)


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file as a whole: a crash leaves the old one or the new one."""
    temporary = path.with_suffix(f".{os.getpid()}.new")
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            json.dump({"version": VERSION, **content}, file, separators=(",", ":"))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any] | None:
    """What was written; None when there is no file, or none that this version understands."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] == 2:
            content = _from_version_2(content)
    except (OSError, *DAMAGED):
        return None
    return content if content["version"] == VERSION else None


def _from_version_2(old: dict[str, Any]) -> dict[str, Any]:
    """The state as of version 3: an update of the exporter loses no energy."""
    energy, tallies, owners = old["accountant"], old["tallies"], old["owners"]
    totals: dict[str, dict[str, Any]] = {}
    for owner, figure, value, since_ns, last_ns in owners["totals"]:
        total = {"value": value, "since_ns": since_ns, "last_ns": last_ns}
        totals.setdefault(json.dumps(owner), {})[json.dumps(figure)] = total
    counted: dict[int, dict[str, float]] = {}
    for jobid, figure, value in owners["counted"]:
        counted.setdefault(jobid, {})[json.dumps(figure)] = value
    counter, gauge = ("value_uj", "at_ns", "max_watts", "range_uj"), ("watts", "at_ns", "max_watts")
    node_totals = {json.dumps(key): uj for *key, uj in energy["ledger"]["totals"]}
    return {
        **{name: old.get(name) for name in ("node", "boot_id")},
        "version": VERSION,
        "energy": {
            **energy,
            "ledger": {**energy["ledger"], "totals": node_totals},
            "counters": {name: _row(counter, row) for name, row in energy["counters"].items()},
            "gauges": {
                name: {**_row(gauge, row), "max_step_ns": 0}
                for name, row in energy["gauges"].items()
            },
        },
        "table": {
            "jobs": {job["jobid"]: job for job in old["jobs"]},
            "closed": old.get("closed", []),
        },
        "job_counters": {
            "jobs": tallies["jobs"],
            "node_gpu_held_seconds": tallies["held"],
            "node_gpu_idle_seconds": tallies["idle"],
            "consumers": tallies["consumers"],
        },
        "user_counters": {
            "totals": totals,
            "counted": counted,
            "node": {json.dumps(figure): value for figure, value in owners["node"]},
        },
        "previous": old["before"],
        "collectors": old.get("collectors", {}),
    }


def _row(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))
