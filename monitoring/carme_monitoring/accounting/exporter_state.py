"""What is kept over a restart of the exporter: one list, one file."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from carme.config import ExporterSettings
from carme_monitoring.accounting.job_counters import JobCounters
from carme_monitoring.accounting.job_table import JobTable
from carme_monitoring.accounting.previous_reading import PreviousReading
from carme_monitoring.accounting.user_counters import UserCounters
from carme_monitoring.energy.accountant import EnergyAccountant

VERSION = 2
DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What restoring raises when the file is of another version, or damaged."""


@dataclass
class ExporterState:
    """Everything that the accounting keeps."""

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
            # Prometheus must read at least once in this time: see carme.config.Prometheus.
            UserCounters(2 * config.interval_seconds),
            PreviousReading(),
        )

    def save(self) -> dict[str, Any]:
        """The content of the file. Its names are older than those of the classes."""
        return {
            "accountant": self.energy.save(),
            "jobs": self.table.save(),
            "closed": sorted(self.table.closed),
            "tallies": self.job_counters.save(),
            "owners": self.user_counters.save(),
            "before": self.previous.save(),
        }

    @classmethod
    def restored(
        cls, saved: Mapping[str, Any], config: ExporterSettings, is_same_boot: bool
    ) -> Self:
        """What `save` gave. After a reboot the jobs are gone and counters began again.

        Raises one of DAMAGED when the content cannot be used; nothing is restored then.
        """
        state = cls.new(config)
        state.energy.restore(saved["accountant"], is_same_boot)
        state.job_counters.restore(saved["tallies"], is_same_boot)
        state.user_counters.restore(saved["owners"], is_same_boot)
        if is_same_boot:
            state.table.restore(saved["jobs"], saved.get("closed", ()))
            state.previous = PreviousReading.restored(saved["before"])
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
