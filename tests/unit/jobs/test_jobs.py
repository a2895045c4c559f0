"""Reports on jobs: questions, answers, advice, and who may ask."""

import asyncio
import csv
import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from carme.config import PrometheusSettings as Settings
from carme.errors import InputError, MissingError
from carme.jobs import queries, terminal
from carme.jobs.commands import parse_moment, to_csv
from carme.jobs.job_reporter import JobFilter, JobReporter, parse_filter
from carme.jobs.models import JobList, MeasuredUsage
from carme.jobs.report_builder import Series, advise, line, report
from carme.prometheus import RangeSeries, Sample
from carme.slurm.models import HistoryJob, Job
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState
from support import recorded_series

GIB = 2**30
OLD = HistoryJob(
    id=7, name="train", user="ann", account="lab", partition="gpu", state=JobState.COMPLETED,
    nodes=("gpu01", "gpu02"), node_count=2, cpus=8, memory_bytes=16 * GIB, gpus={"a100": 2},
    submitted_at=900, started_at=1000, ended_at=1600, elapsed_seconds=600, limit_seconds=7200,
    cpu_seconds=500.0, max_rss_bytes=GIB,
)  # fmt: skip
NOW = 10_000.0


def sample(name: str, value: float, node: str = "gpu01", jobid: str = "7", **more: str) -> Sample:
    return Sample({"__name__": f"carme_job_{name}", "jobid": jobid, "node": node, **more}, value)


SAMPLES = (
    sample("energy_joules_total", 6000, component="gpu"),
    sample("energy_joules_total", 2000, "gpu02", component="gpu"),
    sample("energy_joules_total", 1000, component="cpu"),
    sample("energy_uncertainty_ratio", 0.05),
    sample("energy_uncertainty_ratio", 0.10, "gpu02"),
    sample("emissions_grams_total", 2.5),
    sample("cost_total", 0.5, currency="EUR"),
    sample("gpu_held_seconds_total", 600),
    sample("gpu_held_seconds_total", 600, "gpu02"),
    sample("gpu_idle_seconds_total", 900),
    sample("cpu_seconds_total", 400, mode="user"),
    sample("cpu_seconds_total", 200, mode="system"),
    sample("cpu_idle_seconds_total", 4200),
    sample("memory_peak_bytes", 3 * GIB),
    sample("memory_peak_bytes", GIB, "gpu02"),
    sample("oom_kills_total", 0),
    sample("energy_joules_total", 5, jobid="other", component="gpu"),
)


def test_totals_are_last_values_added_over_nodes() -> None:
    [(job_id, usage)] = queries.read_totals(SAMPLES).items()
    assert job_id == 7
    assert usage.joules == {"cpu": 1000, "gpu": 8000}
    assert usage.joules_by_node == {"gpu01": 7000, "gpu02": 2000}
    assert usage.uncertainty_ratio == pytest.approx((0.05 * 7000 + 0.1 * 2000) / 9000)
    assert (usage.cost, usage.emissions_grams) == ({"EUR": 0.5}, 2.5)
    assert usage.gpu_busy_ratio == pytest.approx(0.25)
    assert usage.cpu_busy_ratio == pytest.approx(600 / 4800)
    assert (usage.memory_peak_bytes, usage.memory_peak_node_bytes) == (4 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    "question",
    [
        queries.totals([7], 600),
        queries.totals([7, 8], 600, queries.LIST_TOTALS),
        queries.gpu_peaks(7, 600),
        *queries.plots(7, 30).values(),
        queries.idleness([7, 8], 600),
    ],
)
def test_questions_name_jobs_by_number_only(question: str) -> None:
    assert "carme_job_" in question
    assert "increase(" not in question, "it would miss a counter's first value"
    with pytest.raises(ValueError, match="invalid literal"):
        queries.totals(['7"} or up{x="'], 600)  # type: ignore[list-item]


def test_plots_have_a_value_for_each_step() -> None:
    power = RangeSeries({}, ((1030, 10.0), (1060, 20.0), (1120, 40.0)))
    plot = queries.read_plot([power], 1000, 30, 5)
    assert plot
    assert plot.values == (10.0, 20.0, None, 40.0, None)
    assert queries.read_plot([], 1000, 30, 4) is None
    assert terminal.spark((0.0, None, 0.5, 1.0), 1.0) == "▁ ▅█"


@pytest.mark.skipif(
    not shutil.which("prometheus", path="/usr/bin:/usr/local/bin"), reason="no Prometheus here"
)
@pytest.mark.parametrize("scrape_seconds", [5, 15, 40])
def test_constant_power_is_plotted_constant(scrape_seconds: int, tmp_path: Path) -> None:
    """For jobs of many lengths, whatever time passes between their start and the first scrape."""
    begin = 1_700_000_000
    lengths = (64, 90, 601, 1080, 1111, 3600, 7777, 54_321)
    jobs = {}
    text = ["# TYPE carme_job_energy_joules counter\n"]
    for number, length in enumerate(lengths, start=1):
        length *= math.ceil(scrape_seconds / 15)
        started_at = begin - (number * 7) % scrape_seconds
        ended_at = started_at + length
        jobs[number] = OLD.model_copy(
            update={"id": number, "started_at": started_at, "ended_at": ended_at}
        )
        for node, watts in (("gpu01", 33.0), ("gpu02", 20.0)):
            points = (
                (at, watts * (at - started_at)) for at in range(begin, ended_at, scrape_seconds)
            )
            labels = {"jobid": str(number), "node": node}
            text.append(recorded_series.line("carme_job_energy_joules_total", labels, points))
    recorded_series.blocks(text, tmp_path / "data")

    async def history(since: int, until: int | None) -> list[HistoryJob]:
        return list(jobs.values())

    with recorded_series.serving(tmp_path / "data") as prometheus:
        settings = Settings(url=prometheus.url, login_file=None, scrape_seconds=scrape_seconds)
        reporter = JobReporter(settings, lambda: begin + 1e6)
        for number in jobs:
            plot = asyncio.run(
                reporter.report(number, Snapshot(taken_at=begin), history, "ann")
            ).power_plot
            assert plot
            assert plot.step_seconds % scrape_seconds == 0
            assert 2 <= len(plot.values) <= queries.PLOT_POINTS
            assert plot.values == pytest.approx([53.0] * len(plot.values)), jobs[number]


def test_idleness_needs_a_whole_measurement() -> None:
    def row(jobid: str, what: str, value: float) -> Sample:
        return Sample({"jobid": jobid, "what": what}, value)

    held, idle, cpu = "gpu_held_seconds_total", "gpu_idle_seconds_total", "cpu_seconds_total"
    samples = [
        *(row("1", held, 120), row("1", idle, 120), row("1", cpu, 30)),
        *(row("2", held, 10), row("2", idle, 10)),  # only just begun, or not measured
        *(row("3", held, 60), row("3", idle, 15), row("3", cpu, 60)),
        row("4", cpu, 60),  # without a GPU
    ]
    idleness = queries.read_idleness(samples, 60)
    assert idleness.keys() == {1, 3}
    assert (idleness[1].gpu_busy_ratio, idleness[1].cpu_cores) == (0, 0.5)
    assert idleness[3].gpu_busy_ratio == 0.75


def test_a_running_job_has_no_end_yet() -> None:
    running = Job(id=1, state=JobState.RUNNING, started_at=9000, ends_at=12_600, cpus=2)
    assert (line(running, NOW).ended_at, line(running, NOW).elapsed_seconds) == (None, 1000)
    waiting = Job(id=1, state=JobState.PENDING, started_at=11_000)
    assert (line(waiting, NOW).started_at, line(waiting, NOW).elapsed_seconds) == (None, 0)


def test_slurm_fills_in_what_no_exporter_measured() -> None:
    alone = OLD.model_copy(update={"nodes": ("gpu01",), "node_count": 1})
    usage = line(alone, NOW).measured
    assert usage
    assert (usage.cpu_seconds, usage.memory_peak_bytes, usage.joules) == (500, GIB, {})
    running = OLD.model_copy(update={"state": JobState.RUNNING, "ended_at": None})
    assert line(running, NOW).measured is None, "the accounting says zero while it runs"


def advice(job: HistoryJob, measured: MeasuredUsage | None) -> dict[str, str]:
    return {entry.what: entry.text for entry in advise(line(job, NOW, measured))}


def test_advice() -> None:
    measured = queries.read_totals(SAMPLES)[7]
    texts = advice(OLD, measured)
    assert texts["gpus"].startswith("The GPUs worked 25%")
    assert texts["cpus"] == "It kept 1 of 8 CPUs at work. Ask for 2."
    assert texts["time"].startswith("It took 10 min of 2 h. Ask for 15 min")
    assert texts["memory"] == "It used 3 GiB of 8 GiB a node. Ask for 4 GiB."
    one_of_two = measured.model_copy(update={"gpus_worked": 1})
    assert advice(OLD, one_of_two)["gpus"] == "Only 1 of 2 GPUs ever worked. Ask for 1."
    never = measured.model_copy(update={"gpu_idle_seconds": 1200.0})
    assert "No GPU did anything" in advice(OLD, never)["gpus"]
    dead = OLD.model_copy(update={"state": JobState.OUT_OF_MEMORY})
    assert advice(dead, measured)["memory"].startswith("It ran out of memory. Ask for 12 GiB")
    late = OLD.model_copy(update={"state": JobState.TIMEOUT})
    assert "were not enough" in advice(late, measured)["time"]


def test_advice_asks_for_memory_that_the_form_takes() -> None:
    small = MeasuredUsage(memory_peak_node_bytes=GIB / 8)
    assert "Ask for 1 GiB" in advice(OLD, small)["memory"]
    tight = OLD.model_copy(update={"memory_bytes": 2 * GIB})
    assert "memory" not in advice(tight, small), "1 GiB on each of two nodes is the least"
    dead = OLD.model_copy(
        update={"state": JobState.OUT_OF_MEMORY, "memory_bytes": GIB / 2, "node_count": 1}
    )
    assert "Ask for 1 GiB or more" in advice(dead, small)["memory"]


def test_good_jobs_are_left_alone_and_short_ones_too() -> None:
    good = MeasuredUsage(
        gpu_held_seconds=1200, gpu_idle_seconds=60, cpu_seconds=4000, cpu_idle_seconds=800,
        memory_peak_bytes=14 * GIB, memory_peak_node_bytes=7 * GIB,
    )  # fmt: skip
    tight = OLD.model_copy(update={"limit_seconds": 900})
    assert advice(tight, good).keys() == {"fine"}
    brief = OLD.model_copy(update={"ended_at": 1002, "limit_seconds": None})
    assert advice(brief, MeasuredUsage(gpu_held_seconds=2, gpu_idle_seconds=2)) == {}
    assert advise(line(Job(id=1, state=JobState.PENDING), NOW)) == ()


def text_of(parts: Any) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_report_on_a_terminal() -> None:
    evil = OLD.model_copy(update={"name": "\x1b[2Jtrain[red]"})
    shown = text_of(terminal.report(report(evil, NOW, Series(queries.read_totals(SAMPLES)[7]))))
    assert "\x1b[2J" not in shown
    assert "9 kJ" in shown
    assert "± 1.1 kJ (95 %) of processors, GPUs alone" in shown
    assert "15 GPU-min idle" in shown
    assert "2.5 g" in shown
    assert "0.5 EUR" in shown
    waits = Job(id=3, user="ann", state=JobState.PENDING, reason="Priority", cpus=2)
    assert "It waits: Priority" in text_of(terminal.report(report(waits, NOW)))
    listed = JobList(jobs=(line(evil, NOW),), left_out=3, problem="away")
    assert "and 3 older ones" in text_of(terminal.listing(listed))
    assert "no jobs in this time" in text_of(terminal.listing(JobList()))


def test_csv_holds_no_formula() -> None:
    evil = OLD.model_copy(update={"name": "=cmd|x"})
    text = to_csv((line(evil, NOW, queries.read_totals(SAMPLES)[7]), line(OLD, NOW)))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["name"] == "'=cmd|x"
    assert (rows[0]["joules"], rows[0]["currency"], rows[0]["gpus"]) == ("9000.0", "EUR", "2")
    assert (rows[1]["joules"], rows[1]["cpu_seconds"]) == ("", "500.0")


def test_moments() -> None:
    assert parse_moment("90m", NOW) == NOW - 5400
    assert parse_moment("1970-01-02T00:00+00:00", NOW) == 86400
    for wrong in ("yesterday", "5", "-1d", "9999999d"):
        with pytest.raises(InputError):
            parse_moment(wrong, NOW)


def test_wishes() -> None:
    job_filter = parse_filter({"since": "5", "state": "failed", "partition": "gpu"})
    assert not job_filter.wants(OLD)
    assert JobFilter(since=0, state="ended", user="ann", account="lab").wants(OLD)
    assert not JobFilter(since=0, state="waiting").wants(OLD)
    for wrong in ({}, {"since": "x"}, {"since": "1", "limit": "0"}, {"since": "1", "state": "odd"}):
        with pytest.raises(InputError):
            parse_filter(wrong)


def answers(ask: Callable[[JobReporter], Any]) -> Any:
    """What the answers are while Prometheus is away: nothing listens on port 9."""
    settings = Settings(url="http://127.0.0.1:9", login_file=None)
    return asyncio.run(ask(JobReporter(settings, lambda: NOW)))


async def history(since: int, until: int | None) -> list[HistoryJob]:
    return [OLD, OLD.model_copy(update={"id": 8, "started_at": 5000, "ended_at": 5010})]


def test_without_prometheus_slurm_still_answers() -> None:
    snapshot = Snapshot(taken_at=NOW)
    report = answers(lambda a: a.report(7, snapshot, history, "ann"))
    assert "Prometheus does not answer" in report.problem
    assert report.asked.gpu_count == 2
    listed = answers(lambda a: a.listing(JobFilter(since=0), snapshot, history, "ann"))
    assert [job.id for job in listed.jobs] == [8, 7]
    assert "Prometheus does not answer" in listed.problem
    with pytest.raises(MissingError, match="no job 9"):
        answers(lambda a: a.report(9, snapshot, history, "ann"))


def test_the_queue_knows_better_what_runs() -> None:
    running = Job(id=7, user="ann", state=JobState.RUNNING, started_at=9990)
    waiting = Job(id=9, user="ann", state=JobState.PENDING, submitted_at=9995)
    snapshot = Snapshot(taken_at=NOW, jobs=(running, waiting))
    listed = answers(lambda a: a.listing(JobFilter(since=0), snapshot, history, "ann"))
    assert [(job.id, job.state.value) for job in listed.jobs] == [
        (9, "PENDING"),
        (7, "RUNNING"),
        (8, "COMPLETED"),
    ]
    only = answers(lambda a: a.listing(JobFilter(since=0, limit=1), snapshot, history, "ann"))
    assert (len(only.jobs), only.left_out) == (1, 2)
    assert answers(lambda a: a.idle([], 60, "hub")).jobs == {}
