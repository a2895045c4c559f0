"""Reports on a terminal."""

import time
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from carme.jobs.models import JobLine, JobList, JobReport, MeasuredUsage, Plot
from carme.slurm.hostlist import compress
from carme.slurm.models import Gpus
from carme.slurm.states import JobState
from carme.units import format_bytes, format_duration, format_emissions, format_joules

_BARS = "▁▂▃▄▅▆▇█"
_COMPONENTS = {"gpu": "GPUs", "cpu": "processors", "dram": "memory", "rest": "rest of the node"}


def printable(text: str) -> str:
    """`text` without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def short(text: str) -> str:
    """At most ten letters of the printable `text`."""
    letters = printable(text)
    return letters if len(letters) <= 10 else f"{letters[:9]}…"


def report(job: JobReport) -> Iterator[RenderableType]:
    """The whole report, part by part."""
    head = Text.assemble((f"Job {job.label}", "bold"), f" {printable(job.name)} of {job.user}")
    nodes = f" on {compress(job.nodes)}" if job.nodes else ""
    yield Text.assemble(head, f", {job.partition}{nodes}: ", _state(job))
    if job.started_at:
        text = f"began {_moment(job.started_at)}"
        if job.submitted_at and job.started_at > job.submitted_at:
            text += f" after {format_duration(job.started_at - job.submitted_at)} in the queue"
        ended = f", ended {_moment(job.ended_at)}" if job.ended_at else ", still runs"
        yield Text(f"{text}{ended}", style="dim")
    if job.state.waiting:
        requested = job.asked
        limit = format_duration(requested.limit_seconds) if requested.limit_seconds else "no limit"
        gpus = f", {_gpus(requested.gpus)} GPUs" if requested.gpus else ""
        memory = format_bytes(requested.memory_bytes)
        yield Text(f"requests {requested.cpus} CPUs, {memory}{gpus}, {limit}")
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


def listing(job_list: JobList) -> Iterator[RenderableType]:
    """A table of jobs."""
    columns = (
        "job",
        "user",
        "name",
        "state",
        "time",
        "GPUs",
        "GPU use",
        "CPU use",
        "charged energy",
    )
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[4:]:
        column.justify = "right"
    for job in job_list.jobs:
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
    yield table if job_list.jobs else Text("no jobs in this time", style="dim")
    if job_list.left_out:
        yield Text(f"and {job_list.left_out} older ones: --limit, --since", style="dim")
    if job_list.problem:
        yield Text(job_list.problem, style="yellow")


def spark(values: tuple[float | None, ...], top: float) -> str:
    """A bar for each value, of eight heights; a space where there is none."""
    heights = (v if v is None else round(v / top * 7) if top > 0 else 0 for v in values)
    return "".join(" " if h is None else _BARS[min(7, max(0, h))] for h in heights)


def _plot(plot: Plot, name: str, top: float | None, form: str) -> Text:
    measured = [value for value in plot.values if value is not None]
    if not measured:
        return Text(f"{name:8} not measured", style="dim")
    highest = max(measured)
    mean = form.format(sum(measured) / len(measured))
    bars = spark(plot.values, top or highest)
    text = f" mean {mean}, at most {form.format(highest)}"
    return Text.assemble(f"{name:8} ", (bars, "cyan"), text)


def _state(job: JobLine) -> Text:
    text = job.state.lower().replace("_", " ")
    is_good = job.state == JobState.COMPLETED or job.state.active
    style = "green" if is_good else "yellow" if job.state.waiting or job.state.ending else "red"
    if job.exit_signal:
        text += f" (signal {job.exit_signal})"
    elif job.exit_code:
        text += f" (exit code {job.exit_code})"
    return Text(text, style=style)


def _moment(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _gpus(gpus: Gpus) -> str:
    return ", ".join(f"{count} {kind}".strip() for kind, count in gpus.items())


def _use(job: JobReport) -> Table:
    """Requested, used and wasted, a row for each resource."""
    requested, measured = job.asked, job.measured or MeasuredUsage()
    table = Table(
        "", "requested", "used", "", "wasted", box=None, pad_edge=False, header_style="bold"
    )
    for column in table.columns[1:]:
        column.justify = "right"

    def row(
        name: str, amount: str, used: float | None, total: float | None, wasted: float | None,
        write: Callable[[float], str], kinds: tuple[str, str] = ("", " idle"),
    ) -> None:  # fmt: skip
        used_text = "–" if used is None else write(used) + kinds[0]
        style = "red" if wasted and total and wasted > total / 2 else ""
        wasted_text = "" if wasted is None else Text(write(wasted) + kinds[1], style)
        table.add_row(name, amount, used_text, _ratio(used, total), wasted_text)

    limit, elapsed = requested.limit_seconds, job.elapsed_seconds
    row("time", format_duration(limit) if limit else "no limit", elapsed, limit, None,
        format_duration)  # fmt: skip
    if requested.gpu_count:
        held, idle = measured.gpu_held_seconds, measured.gpu_idle_seconds
        busy = None if held is None or idle is None else max(0.0, held - idle)
        row("GPUs", _gpus(requested.gpus), busy, held, idle, lambda seconds: _hours(seconds, "GPU"))
        if measured.gpu_memory_peak_bytes is not None:
            used = format_bytes(measured.gpu_memory_peak_bytes)
            table.add_row("GPU memory", "", f"{used} on a GPU", "", "")
    cpu, unused = measured.cpu_seconds, measured.cpu_idle_seconds
    if unused is None and cpu is not None:
        unused = max(0.0, requested.cpus * elapsed - cpu)
    cpu_total = None if cpu is None or unused is None else cpu + unused
    row("CPUs", str(requested.cpus), cpu, cpu_total, unused, lambda seconds: _hours(seconds, "CPU"))
    peak, memory = measured.memory_peak_bytes, requested.memory_bytes
    untouched = None if peak is None or not memory else max(0.0, memory - peak)
    row("memory", format_bytes(memory) if memory else "–", peak, memory, untouched, format_bytes,
        (" at most", " untouched"))  # fmt: skip
    return table


def _hours(seconds: float, resource: str) -> str:
    """`1.5 GPU-h`, or minutes or seconds for less than an hour."""
    if seconds >= 3600:
        return f"{seconds / 3600:.3g} {resource}-h"
    return f"{seconds / 60:.2g} {resource}-min" if seconds >= 60 else f"{seconds:.0f} {resource}-s"


def _ratio(part: float | None, total: float | None) -> str:
    return "–" if part is None or not total else f"{part / total:.0%}"


def _energy(measured: MeasuredUsage) -> Table:
    """Energy by component with its uncertainty, emissions and cost."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    total = measured.total_joules
    # Name the measured components if some are missing: GPU energy is not the energy of a job.
    components = ", ".join(_COMPONENTS.get(name, name) for name in measured.joules)
    scope = "" if "rest" in measured.joules else f"of {components} alone"
    uncertainty = measured.uncertainty_ratio
    interval = "" if uncertainty is None else f"± {format_joules(2 * uncertainty * total)} (95 %)"
    bold_total = Text(format_joules(total), style="bold")
    table.add_row("charged energy", bold_total, f"{interval} {scope}".strip())
    for name, joules in measured.joules.items():
        table.add_row(f"  {_COMPONENTS.get(name, name)}", format_joules(joules), "")
    if measured.gpu_idle_joules:
        table.add_row("  wasted", format_joules(measured.gpu_idle_joules), "by GPUs held and idle")
    if measured.estimated_joules > 0.01 * total:
        table.add_row("  estimated", format_joules(measured.estimated_joules), "divided by time")
    if measured.emissions_grams is not None:
        table.add_row("emissions", format_emissions(measured.emissions_grams), "")
    for currency, cost in measured.cost.items():
        table.add_row("cost", f"{cost:.3g} {currency}", "of electricity")
    return table
