"""Reports on a terminal."""

import time
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from carme.jobs.models import JobLine, JobList, JobReport, MeasuredUsage, Plot
from carme.slurm.commands import printable, short
from carme.slurm.hostlist import compress
from carme.slurm.models import Gpus
from carme.slurm.states import JobState
from carme.units import format_bytes, format_duration, format_joules

_BARS = "▁▂▃▄▅▆▇█"
_COMPONENTS = {"gpu": "GPUs", "cpu": "processors", "dram": "memory", "rest": "rest of the node"}


def report(job: JobReport) -> Iterator[RenderableType]:
    """The whole report, part by part."""
    head = Text.assemble((f"Job {job.label}", "bold"), f" {printable(job.name)} of {job.user}")
    where = f" on {compress(job.nodes)}" if job.nodes else ""
    yield Text.assemble(head, f", {job.partition}{where}: ", _state(job))
    if times := _times(job):
        yield Text(times, style="dim")
    if job.state.waiting:
        yield _asked_only(job)
        if job.reason:
            yield Text(f"It waits: {printable(job.reason)}", style="yellow")
        return
    yield ""
    yield _use(job)
    if job.measured and job.measured.joules:
        yield ""
        yield _energy(job.measured)
    plots = ((job.gpu_plot, "GPU use", 1.0, "{:.0%}"), (job.power_plot, "power", None, "{:.0f} W"))
    if any(plot for plot, *_ in plots):
        yield ""
    for plot, name, top, form in plots:
        if plot:
            yield _plot(plot, name, top, form)
    if job.problem:
        yield ""
        yield Text(job.problem, style="yellow")
    if job.advice:
        yield ""
        yield Text("Next time", style="bold")
        for advice in job.advice:
            yield Text(f"  {advice.text}", style="green" if advice.what == "fine" else "")


def listing(found: JobList) -> Iterator[RenderableType]:
    """A table of jobs."""
    columns = ("job", "user", "name", "state", "time", "GPUs", "GPU use", "CPU use", "energy")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[4:]:
        column.justify = "right"
    for job in found.jobs:
        measured = job.measured or MeasuredUsage()
        busy = measured.gpu_busy_ratio
        table.add_row(
            job.label,
            short(job.user),
            Text(short(job.name)),
            _state(job),
            format_duration(job.elapsed_seconds) if job.started_at else "–",
            str(job.asked.gpu_count or "–"),
            "–" if busy is None else Text(f"{busy:.0%}", style="red" if busy < 0.5 else ""),
            _ratio(job.cpus_used, job.asked.cpus),
            format_joules(measured.total_joules) if measured.joules else "–",
        )
    yield table if found.jobs else Text("no jobs in this time", style="dim")
    if found.left_out:
        yield Text(f"and {found.left_out} older ones: --limit, --since", style="dim")
    if found.problem:
        yield Text(found.problem, style="yellow")


def spark(values: tuple[float | None, ...], top: float) -> str:
    """A bar for each value, of eight heights; a space where there is none."""
    if top <= 0:
        return "".join(" " if value is None else _BARS[0] for value in values)
    return "".join(
        " " if value is None else _BARS[min(7, max(0, round(value / top * 7)))] for value in values
    )


def _plot(plot: Plot, name: str, top: float | None, form: str) -> Text:
    known = [value for value in plot.values if value is not None]
    if not known:
        return Text(f"{name:8} not measured", style="dim")
    highest = max(known)
    mean = form.format(sum(known) / len(known))
    bars = spark(plot.values, top or highest)
    text = f" mean {mean}, at most {form.format(highest)}"
    return Text.assemble(f"{name:8} ", (bars, "cyan"), text)


def _state(job: JobLine) -> Text:
    word = job.state.lower().replace("_", " ")
    good = job.state == JobState.COMPLETED or job.state.active
    style = "green" if good else "yellow" if job.state.waiting or job.state.ending else "red"
    if job.exit_signal:
        word += f" (signal {job.exit_signal})"
    elif job.exit_code:
        word += f" (exit code {job.exit_code})"
    return Text(word, style=style)


def _times(job: JobLine) -> str:
    if not job.started_at:
        return ""
    text = f"began {_moment(job.started_at)}"
    if job.submitted_at and job.started_at > job.submitted_at:
        text += f" after {format_duration(job.started_at - job.submitted_at)} in the queue"
    ended = f", ended {_moment(job.ended_at)}" if job.ended_at else ", still runs"
    return f"{text}{ended}"


def _moment(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _gpus(gpus: Gpus) -> str:
    return ", ".join(f"{count} {kind}".strip() for kind, count in gpus.items())


def _asked_only(job: JobReport) -> Text:
    asked = job.asked
    limit = format_duration(asked.limit_seconds) if asked.limit_seconds else "no limit"
    gpus = f", {_gpus(asked.gpus)} GPUs" if asked.gpus else ""
    return Text(f"asks for {asked.cpus} CPUs, {format_bytes(asked.memory_bytes)}{gpus}, {limit}")


def _use(job: JobReport) -> Table:
    """Asked, used and wasted, a line for each kind of thing."""
    asked, measured = job.asked, job.measured or MeasuredUsage()
    table = Table("", "asked", "used", "", "wasted", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    limit, spent = asked.limit_seconds, job.elapsed_seconds
    table.add_row(
        "time",
        format_duration(limit) if limit else "no limit",
        format_duration(spent),
        _ratio(spent, limit),
        "",
    )
    if asked.gpu_count:
        held, idle = measured.gpu_held_seconds, measured.gpu_idle_seconds
        busy = None if held is None or idle is None else max(0.0, held - idle)
        table.add_row(
            "GPUs",
            _gpus(asked.gpus),
            "–" if busy is None else _hours(busy, "GPU"),
            _ratio(busy, held),
            "" if idle is None else Text(_hours(idle, "GPU") + " idle", _waste(idle, held)),
        )
        if measured.gpu_memory_peak_bytes is not None:
            used = format_bytes(measured.gpu_memory_peak_bytes)
            table.add_row("GPU memory", "", f"{used} on a GPU", "", "")
    cpu, unused = measured.cpu_seconds, measured.cpu_idle_seconds
    if unused is None and cpu is not None:
        unused = max(0.0, asked.cpus * spent - cpu)
    could = None if cpu is None or unused is None else cpu + unused
    table.add_row(
        "CPUs",
        str(asked.cpus),
        "–" if cpu is None else _hours(cpu, "CPU"),
        _ratio(cpu, could),
        "" if unused is None else Text(_hours(unused, "CPU") + " idle", _waste(unused, could)),
    )
    peak, memory = measured.memory_peak_bytes, asked.memory_bytes
    left = None if peak is None or not memory else max(0.0, memory - peak)
    table.add_row(
        "memory",
        format_bytes(memory) if memory else "–",
        "–" if peak is None else f"{format_bytes(peak)} at most",
        _ratio(peak, memory),
        "" if left is None else Text(f"{format_bytes(left)} untouched", _waste(left, memory)),
    )
    return table


def _hours(seconds: float, what: str) -> str:
    """`1.5 GPU-h`; minutes while they are few."""
    if seconds >= 3600:
        return f"{seconds / 3600:.3g} {what}-h"
    return f"{seconds / 60:.2g} {what}-min" if seconds >= 60 else f"{seconds:.0f} {what}-s"


def _waste(wasted: float, whole: float | None) -> str:
    return "red" if whole and wasted > whole / 2 else ""


def _ratio(part: float | None, whole: float | None) -> str:
    return "–" if part is None or not whole else f"{part / whole:.0%}"


def _energy(measured: MeasuredUsage) -> Table:
    """Energy by component with its uncertainty, and what it means outside."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    total = measured.total_joules
    # Whose meters are missing is said: GPU energy alone is not the energy of a job.
    whole = "rest" in measured.joules
    sure = measured.uncertainty_ratio
    interval = f"± {format_joules(2 * sure * total)} (95 %)" if sure is not None else ""
    scope = "of the node" if whole else f"of {_names(measured.joules)} alone"
    table.add_row("energy", Text(format_joules(total), style="bold"), f"{interval} {scope}".strip())
    for name, joules in measured.joules.items():
        table.add_row(f"  {_COMPONENTS.get(name, name)}", format_joules(joules), "")
    if measured.gpu_idle_joules:
        table.add_row("  wasted", format_joules(measured.gpu_idle_joules), "by GPUs held and idle")
    if measured.estimated_joules > 0.01 * total:
        table.add_row("  estimated", format_joules(measured.estimated_joules), "divided by time")
    if measured.emissions_grams is not None:
        table.add_row("emissions", f"{measured.emissions_grams:.3g} g", "CO2 equivalent")
    for currency, cost in measured.cost.items():
        table.add_row("cost", f"{cost:.3g} {currency}", "of electricity")
    return table


def _names(joules: Mapping[str, float]) -> str:
    return ", ".join(_COMPONENTS.get(name, name) for name in joules)
