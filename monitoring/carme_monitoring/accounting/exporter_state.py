"""The exporter's state, which one file keeps over restarts."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from carme.config import ExporterSettings
from carme_monitoring.accounting.counters import JobCounters, UserCounters
from carme_monitoring.accounting.job_table import JobTable, NodeJob
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


VERSION = 2
DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What restoring raises when the file is of another version, or damaged."""


@dataclass
class ExporterState:
    """Everything that the accounting keeps over a restart."""

    energy: EnergyAccountant
    table: JobTable
    job_counters: JobCounters
    user_counters: UserCounters
    previous: PreviousReading

    @classmethod
    def new(cls, config: ExporterSettings) -> Self:
        """The state of a node that was never measured."""
        return cls(
            EnergyAccountant(max_step_seconds=4 * config.interval_seconds),
            JobTable(config.keep_seconds),
            JobCounters(),
            # Prometheus must read at least once in this time: see carme.config.PrometheusSettings.
            UserCounters(2 * config.interval_seconds),
            PreviousReading(),
        )

    def save(self) -> dict[str, Any]:
        """The content of the file. Its names are older than those of the classes."""
        return {
            "accountant": self.energy.save(),
            "jobs": [vars(job) for job in self.table.jobs.values()],
            "closed": sorted(self.table.closed),
            "tallies": self.job_counters.save(),
            "owners": self.user_counters.save(),
            "before": asdict(self.previous),
        }

    @classmethod
    def restored(
        cls, saved: Mapping[str, Any], config: ExporterSettings, is_same_boot: bool
    ) -> Self:
        """The saved state. After a reboot there are no jobs, and counters start at zero.

        Raises one of DAMAGED when the content cannot be used; nothing is restored then.
        """
        state = cls.new(config)
        state.energy.restore(saved["accountant"], is_same_boot)
        state.job_counters.restore(saved["tallies"], is_same_boot)
        state.user_counters.restore(saved["owners"], is_same_boot)
        if is_same_boot:
            jobs = TypeAdapter(list[NodeJob]).validate_python(saved["jobs"])
            state.table.jobs = {job.jobid: job for job in jobs}
            state.table.closed = {(jobid, restart) for jobid, restart in saved.get("closed", ())}
            state.previous = TypeAdapter(PreviousReading).validate_python(saved["before"])
        else:
            for jobid in list(state.energy.ledger.accounts):
                state.energy.forget(jobid)
        return state

    def forget(self, jobid: int) -> None:
        """Drop a job whose series have ended; the totals of node and user keep its part."""
        del self.table.jobs[jobid]
        self.energy.forget(jobid)
        self.job_counters.forget(jobid)
        self.user_counters.forget(jobid)
        self.previous.forget(jobid)


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
    """What was written; None when there is no file, or none of this version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return None
    return content
