"""Controller mode: the view's snapshot as samples, and under the names of slurm-exporter."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from carme.errors import UnavailableError
from carme.slurm.models import Job, Node, Partition
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState, NodeState
from carme.system.programs import CommandResult
from carme_monitoring.collector import CollectorContext, Roots
from carme_monitoring.collectors.slurm import (
    ClusterCollector,
    ClusterReading,
    SchedulerReader,
    SchedulerReading,
    add_scheduler,
    parse_sdiag,
    waiting_tasks,
)
from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import Pipeline
from carme_monitoring.profiles import PROFILES, ProfileContext

SDIAG = """\
*******************************************************
sdiag output at Mon Nov 16 03:35:51 2026 (1794800151)
*******************************************************
Server thread count:  3
Agent queue size:     1
DBD Agent queue size: 2

Jobs submitted: 5
Jobs running:   0

Main schedule statistics (microseconds):
\tLast cycle:   900
\tMax cycle:    1394
\tMean cycle:   52
\tLast queue length: 4

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 7
\tLast cycle when: Mon Nov 16 03:16:19 2026 (1794798979)
\tLast cycle: 405
\tMean cycle: 442
\tLast queue length: 1

Latency for 1000 calls to gettimeofday(): 32 microseconds

Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO ( 2003) count:1 ave_time:277 total_time:277
"""
SNAPSHOT = Snapshot(
    taken_at=990,
    partitions=(Partition(name="gpu"), Partition(name="old", state="DOWN")),
    nodes=(
        Node(name="n1", state=NodeState.MIXED, partitions=("gpu", "old"), cpus=8, cpus_used=3,
             gpus={"a100": 4}, gpus_used={"a100": 1}),
        Node(name="n2", state=NodeState.IDLE, flags=("DRAIN",), partitions=("gpu",), cpus=8,
             gpus={"a100": 4, "": 1}),
    ),
    jobs=(
        Job(id=1, user="ann", account="p", partition="gpu", state=JobState.RUNNING, cpus=3,
            gpus={"a100": 1}, submitted_at=100, eligible_at=110, started_at=150),
        Job(id=2, user="ben", account="p", partition="gpu", state=JobState.PENDING, cpus=2,
            reason="Priority", submitted_at=400, eligible_at=400, array_tasks="2-9%4"),
        Job(id=3, user="ben", account="q", partition="gpu", state=JobState.PENDING, cpus=1,
            reason="Dependency", submitted_at=900, eligible_at=2000),
    ),
)  # fmt: skip


class FixedView:
    def snapshot(self) -> Snapshot:
        return SNAPSHOT

    def counters(self) -> dict[str, Any]:
        return {"reads": 7, "errors": 1, "last_read_seconds": 0.25, "requests": 40}


CONTEXT = CollectorContext(roots=Roots(time_s=lambda: 1000.0), view=FixedView())


def collected() -> Samples:
    out, cluster = Samples(), ClusterCollector(CONTEXT)
    cluster.add_samples(out, cluster.read())
    add_scheduler(out, parse_sdiag(SDIAG))
    return out


def test_nodes_cpus_and_gpus() -> None:
    out = collected()
    assert out.families["carme_slurm_cluster_nodes"] == {("mixed",): 1, ("drained",): 1}
    assert out.families["carme_slurm_cluster_cpus"] == {
        ("allocated",): 3, ("idle",): 5, ("other",): 8,
    }  # fmt: skip
    assert out.value("carme_slurm_cpus", "old", "idle") == 5
    assert out.families["carme_slurm_gpus"] == {
        ("a100", "allocated"): 1, ("a100", "free"): 3, ("a100", "unavailable"): 4,
        ("", "allocated"): 0, ("", "free"): 0, ("", "unavailable"): 1,
    }  # fmt: skip
    assert out.value("carme_slurm_partition_up", "old") == 0
    assert out.value("carme_slurm_snapshot_age_seconds") == 10
    assert out.value("carme_view_reads_total") == 7
    assert out.value("carme_view_requests_total") == 40


def test_queue_and_waits() -> None:
    out = collected()
    assert out.value("carme_slurm_jobs", "gpu", "p", "ben", "pending") == 8
    assert out.value("carme_slurm_job_cpus", "gpu", "p", "ben", "pending") == 16
    assert out.value("carme_slurm_pending_jobs", "gpu", "Dependency") == 1
    assert out.value("carme_slurm_pending_oldest_seconds", "gpu") == 600
    assert out.value("carme_slurm_started_wait_seconds", "gpu", "50") == 40


def test_scheduler_health() -> None:
    out = collected()
    assert out.value("carme_slurm_scheduler_threads") == 3
    assert out.value("carme_slurm_scheduler_cycle_seconds", "main", "last") == 0.0009
    assert out.value("carme_slurm_scheduler_cycle_seconds", "backfill", "last") == 0.000405
    assert out.value("carme_slurm_scheduler_queue_length", "main") == 4
    assert out.value("carme_slurm_scheduler_backfilled_jobs") == 7


def test_names_of_slurm_exporter() -> None:
    out = collected()
    PROFILES["slurm-exporter"].add(out, ProfileContext())
    expected = {
        "slurm_nodes_mix": 1, "slurm_nodes_drain": 1, "slurm_nodes_alloc": 0,
        "slurm_cpus_total": 16, "slurm_cpus_other": 8, "slurm_gpus_total": 9,
        "slurm_gpus_alloc": 1, "slurm_queue_pending": 9, "slurm_queue_pending_dependency": 1,
        "slurm_queue_running": 1, "slurm_scheduler_last_cycle": 900,
        "slurm_scheduler_queue_size": 1, "slurm_scheduler_dbd_queue_size": 2,
    }  # fmt: skip
    assert {name: out.value(name) for name in expected} == expected
    assert out.value("slurm_partition_cpus_total", "gpu") == 16
    assert out.value("slurm_account_jobs_pending", "p") == 8
    assert out.value("slurm_user_cpus_running", "ann") == 3


def test_waiting_tasks() -> None:
    assert [waiting_tasks(text) for text in ("", "2-9%4", "1,3,5-7", "0-8:2", "x")] == [
        1, 8, 5, 5, 1,
    ]  # fmt: skip


def test_a_scheduler_that_does_not_answer_has_no_figures() -> None:
    def run(*_: Any, **__: Any) -> CommandResult:
        raise UnavailableError("sdiag did not answer within 20 s")

    scheduler = SchedulerReader(run=run)
    scheduler.step()
    assert scheduler.latest.values == {}
    out = Samples()
    add_scheduler(out, scheduler.latest.values)
    assert len(out) == 0
    for end in range(0, len(SDIAG), 37):
        parse_sdiag(SDIAG[:end])


def test_closed_nodes_and_jobs_that_end_soon_are_named() -> None:
    out = collected()
    assert out.families["carme_slurm_node_closed"] == {("n2", "drained"): 1}
    assert "carme_slurm_job_ends_timestamp_seconds" not in out.families
    ends = [
        Job(id=7, user="ann", account="p", partition="gpu", state=JobState.RUNNING,
            ends_at=1000 + 600, limit_seconds=3600),
        Job(id=8, state=JobState.RUNNING, ends_at=1000 + 7200, limit_seconds=36000),
        Job(id=9, state=JobState.RUNNING),
        Job(id=10, state=JobState.PENDING, ends_at=1000 + 60, limit_seconds=60),
    ]  # fmt: skip
    out, cluster = Samples(), ClusterCollector(CONTEXT)
    snapshot = SNAPSHOT.model_copy(update={"jobs": tuple(ends)})
    cluster.add_samples(out, ClusterReading(snapshot, {}))
    end_times = out.families["carme_slurm_job_ends_timestamp_seconds"]
    assert end_times == {("7", "ann", "p", "gpu"): 1600}


def test_a_view_that_dies_between_two_questions_fails_the_collector_alone() -> None:
    class Dying(FixedView):
        def counters(self) -> dict[str, Any]:
            raise UnavailableError("carme-view does not answer")

    samples = Pipeline(CollectorContext(view=Dying())).collect()
    assert samples.value("carme_slurm_up") == 0
    assert samples.value("carme_collector_success", "slurm") == 0


def test_sdiag_is_asked_again_after_an_answer_that_is_no_text() -> None:
    asked = threading.Semaphore(0)

    def run(argv: Sequence[str], **_: Any) -> CommandResult:
        asked.release()
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    scheduler = SchedulerReader(run=run, every_seconds=0.01)
    scheduler.start()
    assert all(asked.acquire(timeout=30) for _ in range(2))
    scheduler.stop()


def test_the_accounting_is_asked_by_itself() -> None:
    def answers(code: int, text: str) -> Any:
        def run(argv: Sequence[str], **_: Any) -> CommandResult:
            if argv[0] == "/opt/slurm/sdiag":
                return CommandResult(SDIAG, "", 0)
            assert argv[0] == "/opt/slurm/sacctmgr"
            return CommandResult(text, "", code)

        return run

    for code, text, expected in ((0, "c\n", 1), (1, "", 0), (0, "", 0)):
        scheduler = SchedulerReader("/opt/slurm/sdiag", run=answers(code, text))
        assert scheduler.latest.accounting_up is None
        scheduler.step()
        assert scheduler.latest.accounting_up == expected
        assert scheduler.latest.values
    nowhere = SchedulerReader("/nonexistent/sdiag")
    nowhere.step()
    assert nowhere.latest == SchedulerReading()


def test_the_scheduler_s_figures_are_those_that_were_read() -> None:
    """Its thread may replace them while samples are made."""
    scheduler = SchedulerReader(run=lambda *_, **__: CommandResult(SDIAG, "", 0))
    scheduler.step()
    cluster = ClusterCollector(replace(CONTEXT, scheduler=scheduler))
    reading, out = cluster.read(), Samples()
    scheduler.latest = SchedulerReading({"Server thread count": 99}, 0)
    cluster.add_samples(out, reading)
    assert out.value("carme_slurm_scheduler_threads") == 3
    assert out.value("carme_slurm_accounting_up") == 1
