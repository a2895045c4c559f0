"""Controller mode: the cluster's partitions, nodes, GPUs and queue, and the scheduler's figures.

The cluster comes from `carme-view`, which polls Slurm for all of Carme. The scheduler's figures
come from `sdiag`, which a thread runs once a minute.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from carme.errors import MissingError, UnavailableError
from carme.slurm.models import Job
from carme.slurm.snapshot import Snapshot
from carme.system.programs import CommandResult, execute
from carme_monitoring.collector import Collector
from carme_monitoring.metrics import Samples, metric_group
from carme_monitoring.periodic_thread import PeriodicThread

log = logging.getLogger(__name__)
_SDIAG_EVERY_SECONDS = 60
_FIELD = re.compile(r"^\s*([^:]+):\s+(\d+)\s*$")
_PERCENTILES = (50, 90, 99)
_VIEW = {
    "reads": "carme_view_reads_total",
    "errors": "carme_view_read_errors_total",
    "last_read_seconds": "carme_view_read_seconds",
    "requests": "carme_view_requests_total",
    "refresh_requests": "carme_view_refreshes_total",
    "refusals": "carme_view_refusals_total",
}
_ENDS_WITHIN_SECONDS = 3600
"""Only jobs that end soon have a series for it: a full queue would be thousands."""
METRICS = metric_group(
    "Cluster (controller mode)",
    ("slurm_up", "gauge", "", "1 while Slurm's controller answers."),
    ("slurm_accounting_up", "gauge", "", "1 while Slurm's accounting (slurmdbd) answers."),
    ("slurm_snapshot_age_seconds", "gauge", "", "Age of the snapshot of the cluster."),
    ("slurm_cluster_nodes", "gauge", "state", "Nodes by state, each once."),
    ("slurm_cluster_cpus", "gauge", "state", "CPUs: allocated, idle, other; each once."),
    ("slurm_nodes", "gauge", "partition state",
     "Nodes by state; a node may be in several partitions."),
    ("slurm_node_closed", "gauge", "node state",
     "1 for each node that takes no jobs; nodes that do have no series."),
    ("slurm_cpus", "gauge", "partition state", "CPUs: allocated, idle, other."),
    ("slurm_gpus", "gauge", "type state", "GPUs: allocated, free, unavailable."),
    ("slurm_partition_up", "gauge", "partition", "1 when jobs may start there."),
    ("slurm_jobs", "gauge", "partition account user state", "Jobs in the queue."),
    ("slurm_job_cpus", "gauge", "partition account user state", "CPUs of these jobs."),
    ("slurm_job_gpus", "gauge", "partition account user state", "GPUs of these jobs."),
    ("slurm_job_ends_timestamp_seconds", "gauge", "jobid user account partition",
     "When the time limit ends a running job, in the last hour before that."),
    ("slurm_pending_jobs", "gauge", "partition reason", "Waiting jobs by Slurm's reason."),
    ("slurm_pending_oldest_seconds", "gauge", "partition", "Longest wait so far."),
    ("slurm_pending_mean_seconds", "gauge", "partition", "Mean wait so far."),
    ("slurm_started_wait_seconds", "gauge", "partition percentile",
     "Waiting times of the jobs that run now: 50, 90 and 99 percent waited no longer."),
    ("slurm_scheduler_threads", "gauge", "", "Threads of the controller at work."),
    ("slurm_scheduler_agent_queue", "gauge", "", "Messages to nodes that wait to be sent."),
    ("slurm_scheduler_dbd_queue", "gauge", "", "Records that wait for the accounting."),
    ("slurm_scheduler_cycle_seconds", "gauge", "scheduler statistic",
     "Time of a cycle of the main and the backfill scheduler: last, mean, max."),
    ("slurm_scheduler_queue_length", "gauge", "scheduler", "Jobs looked at in the last cycle."),
    ("slurm_scheduler_backfilled_jobs", "gauge", "", "Jobs backfilled since Slurm started."),
    ("view_reads_total", "counter", "", "Times that carme-view read Slurm."),
    ("view_read_errors_total", "counter", "", "Times that this failed."),
    ("view_read_seconds", "gauge", "", "Time that its last reading took."),
    ("view_requests_total", "counter", "", "Requests that it answered."),
    ("view_refreshes_total", "counter", "",
     "Requests among them for a newer snapshot."),
    ("view_refusals_total", "counter", "",
     "Requests that it refused because a user reached a limit."),
)  # fmt: skip


@dataclass(frozen=True)
class SchedulerReading:
    """What `sdiag` and `sacctmgr` said last."""

    values: Mapping[str, int] = field(default_factory=dict)
    """sdiag's numbers by name."""
    accounting_up: int | None = None
    """1 when slurmdbd answered, 0 when it did not; None where there is no sacctmgr."""


@dataclass(frozen=True)
class ClusterReading:
    """The view's snapshot and counters, and the scheduler's figures."""

    snapshot: Snapshot
    counters: Mapping[str, Any]
    scheduler: SchedulerReading = SchedulerReading()


class SlurmView(Protocol):
    """The methods of carme.view.client.ViewClient that the exporter uses."""

    def snapshot(self) -> Snapshot: ...

    def counters(self) -> dict[str, Any]: ...


class ClusterCollector(Collector[ClusterReading]):
    """The cluster's partitions, nodes, GPUs and queue."""

    name, metrics = "slurm", METRICS
    modes, requires, order = ("controller",), "view", 1

    def read(self) -> ClusterReading:
        view = self.context.view
        if view is None:
            raise UnavailableError("no view is configured")
        scheduler = self.context.scheduler
        latest = scheduler.latest if scheduler else SchedulerReading()
        return ClusterReading(view.snapshot(), view.counters(), latest)

    def add_failure(self, out: Samples) -> None:
        out.add("carme_slurm_up", (), 0)

    def add_samples(self, out: Samples, reading: ClusterReading) -> None:
        snapshot = reading.snapshot
        now = self.context.roots.time_s()
        out.add("carme_slurm_up", (), int(snapshot.controller == "up"))
        age = round(snapshot.age_seconds(now), 3)
        out.add("carme_slurm_snapshot_age_seconds", (), age)
        for partition in snapshot.partitions:
            out.add("carme_slurm_partition_up", (partition.name,), int(partition.up))
        _add_nodes(out, snapshot)
        _add_queue(out, snapshot.jobs)
        _add_times(out, snapshot.jobs, now)
        for name, metric in _VIEW.items():
            out.add(metric, (), reading.counters.get(name))
        add_scheduler(out, reading.scheduler.values)
        out.add("carme_slurm_accounting_up", (), reading.scheduler.accounting_up)


def _add_nodes(out: Samples, snapshot: Snapshot) -> None:
    for node in snapshot.nodes:
        state = _node_state(node.state.value, node.flags)
        # Slurm's own way of counting: what a closed node has free is neither idle nor used.
        free = max(0, node.cpus - node.cpus_used)
        cpus = {
            "allocated": node.cpus_used,
            "idle": free if node.open else 0,
            "other": 0 if node.open else free,
        }
        out.increase("carme_slurm_cluster_nodes", (state,), 1)
        if not node.open:
            out.add("carme_slurm_node_closed", (node.name, state), 1)
        for partition in node.partitions:
            out.increase("carme_slurm_nodes", (partition, state), 1)
        for use, count in cpus.items():
            out.increase("carme_slurm_cluster_cpus", (use,), count)
            for partition in node.partitions:
                out.increase("carme_slurm_cpus", (partition, use), count)
        for kind, count in node.gpus.items():
            used = min(count, node.gpus_used.get(kind, 0))
            free = count - used
            out.increase("carme_slurm_gpus", (kind, "allocated"), used)
            out.increase("carme_slurm_gpus", (kind, "free"), free if node.open else 0)
            out.increase("carme_slurm_gpus", (kind, "unavailable"), 0 if node.open else free)


def _node_state(state: str, flags: Iterable[str]) -> str:
    """One word a node: the flag that closes it, else its state."""
    for flag in ("DRAIN", "MAINTENANCE", "FAIL", "NOT_RESPONDING", "COMPLETING", "RESERVED"):
        if flag in flags:
            if flag == "DRAIN":
                return "drained" if state in ("IDLE", "DOWN") else "draining"
            return flag.lower()
    return state.lower()


def _add_queue(out: Samples, jobs: Iterable[Job]) -> None:
    for job in jobs:
        count = waiting_tasks(job.array_tasks) if job.state.waiting else 1
        key = (job.partition, job.account, job.user, job.state.value.lower())
        out.increase("carme_slurm_jobs", key, count)
        out.increase("carme_slurm_job_cpus", key, job.cpus * count)
        if job.gpu_count:
            out.increase("carme_slurm_job_gpus", key, job.gpu_count * count)
        if job.state.waiting:
            reason = job.reason or "None"
            out.increase("carme_slurm_pending_jobs", (job.partition, reason), count)


def _add_times(out: Samples, jobs: Iterable[Job], now: float) -> None:
    waiting: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for job in jobs:
        ends = job.ends_at
        if job.state.active and ends and job.limit_seconds and ends - now <= _ENDS_WITHIN_SECONDS:
            key = (str(job.id), job.user, job.account, job.partition)
            out.add("carme_slurm_job_ends_timestamp_seconds", key, ends)
        since = job.eligible_at or job.submitted_at
        if since is None:
            continue
        if job.state.waiting and since <= now:
            waiting.setdefault(job.partition, []).append(now - since)
        elif job.state.active and job.started_at is not None:
            waited.setdefault(job.partition, []).append(max(0, job.started_at - since))
    for partition, times in waiting.items():
        out.add("carme_slurm_pending_oldest_seconds", (partition,), round(max(times), 3))
        mean = round(sum(times) / len(times), 3)
        out.add("carme_slurm_pending_mean_seconds", (partition,), mean)
    for partition, times in waited.items():
        times.sort()
        for percent in _PERCENTILES:
            value = times[min(len(times) - 1, percent * len(times) // 100)]
            out.add("carme_slurm_started_wait_seconds", (partition, str(percent)), value)


def waiting_tasks(text: str) -> int:
    """How many tasks `2-9%4` or `1,3,5-7` names; 1 for none, which is a job without an array."""
    count = 0
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match:
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            count += max(0, last - first) // max(1, step) + 1
    return max(1, count)


def parse_sdiag(text: str) -> dict[str, int]:
    """sdiag's numbers by name; those of the schedulers as `main/…` and `backfill/…`."""
    values: dict[str, int] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("Main schedule"):
            section = "main/"
        elif line.startswith("Backfilling"):
            section = "backfill/"
        elif line and not line[0].isspace() and section and not _FIELD.match(line):
            section = ""
        match = _FIELD.match(line)
        if match and (section or not line[0].isspace()):
            values.setdefault(section + match[1].strip(), int(match[2]))
        if line.startswith("Remote Procedure Call"):
            break
    return values


def add_scheduler(out: Samples, values: Mapping[str, int]) -> None:
    """The scheduler's samples; a figure that a release names differently is left out."""
    out.add("carme_slurm_scheduler_threads", (), values.get("Server thread count"))
    out.add("carme_slurm_scheduler_agent_queue", (), values.get("Agent queue size"))
    out.add("carme_slurm_scheduler_dbd_queue", (), values.get("DBD Agent queue size"))
    for scheduler in ("main", "backfill"):
        for statistic in ("Last", "Mean", "Max"):
            value = values.get(f"{scheduler}/{statistic} cycle")
            if value is not None:
                key = (scheduler, statistic.lower())
                out.add("carme_slurm_scheduler_cycle_seconds", key, value / 1e6)
        length = values.get(f"{scheduler}/Last queue length")
        out.add("carme_slurm_scheduler_queue_length", (scheduler,), length)
    name = "backfill/Total backfilled jobs (since last slurm start)"
    out.add("carme_slurm_scheduler_backfilled_jobs", (), values.get(name))


class SchedulerReader(PeriodicThread):
    """Runs `sdiag`, and `sacctmgr` to see whether accounting answers, once a minute in a thread."""

    def __init__(
        self,
        command: str = "sdiag",
        environment: Mapping[str, str] | None = None,
        run: Callable[..., CommandResult] = execute,
        every_seconds: float = _SDIAG_EVERY_SECONDS,
    ) -> None:
        super().__init__("sdiag")
        self._command, self._environment, self._run = command, environment, run
        self._every = every_seconds
        self.latest = SchedulerReading()

    def period_seconds(self) -> float:
        return self._every

    def step(self) -> None:
        """Run both once; one that does not answer has no figures, not old ones."""
        figures = self._output(self._command)
        # sacctmgr asks slurmdbd itself: without slurmdbd, the controller only queues records.
        sacctmgr = str(Path(self._command).with_name("sacctmgr"))
        clusters = self._output(sacctmgr, "-nP", "show", "cluster", "format=cluster")
        accounting_up = None if clusters is None else int(bool(clusters))
        self.latest = SchedulerReading(parse_sdiag(figures or ""), accounting_up)

    def _output(self, *argv: str) -> str | None:
        """What the program printed; empty when it failed, None when there is no such program."""
        try:
            result = self._run(argv, env=self._environment, timeout_seconds=20)
        except MissingError:
            return None
        except UnavailableError:
            return ""
        return result.stdout if result.returncode == 0 else ""
