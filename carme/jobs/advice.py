"""What to request next time, from what was requested and used. No I/O.

Advice adds a fifth in reserve, and is given only where half or more was unused: a job that runs
out of memory costs more than an unused gigabyte.
"""

import math
from collections.abc import Iterator

from carme.jobs.models import JobLine, MeasuredUsage, ReportAdvice
from carme.slurm.states import JobState
from carme.units import format_bytes, format_duration

_RESERVE = 1.2
_WORTH = 0.5
_GIBIBYTE = 2**30
_SHORT_SECONDS = 20
"""What a job does in its first seconds says little about the rest."""


def advise(job: JobLine) -> tuple[ReportAdvice, ...]:
    """One sentence for each thing that should be asked for differently."""
    if job.state.waiting or not job.elapsed_seconds:
        return ()
    advice = list(_all(job))
    if not advice and job.measured and job.elapsed_seconds >= _SHORT_SECONDS:
        advice = [
            ReportAdvice(what="fine", text="It used what it asked for: ask for the same again.")
        ]
    return tuple(advice)


def _all(job: JobLine) -> Iterator[ReportAdvice]:
    measured = job.measured or MeasuredUsage()
    yield from _memory(job, measured)
    if job.elapsed_seconds >= _SHORT_SECONDS:
        yield from _gpus(job, measured)
        yield from _cpus(job)
    yield from _time(job)


def _gpus(job: JobLine, measured: MeasuredUsage) -> Iterator[ReportAdvice]:
    held, busy = job.asked.gpu_count, measured.gpu_busy_ratio
    if not held or busy is None:
        return
    worked = measured.gpus_worked
    if busy < 0.01:
        text = "No GPU did anything. Ask for none, or check that the program finds them."
    elif worked is not None and worked < held:
        text = f"Only {worked} of {held} GPUs ever worked. Ask for {worked}."
    elif busy < _WORTH:
        text = (
            f"The GPUs worked {busy:.0%} of their time. Fewer of them, more loader processes or a"
            " larger batch would use them better."
        )
    else:
        return
    yield ReportAdvice(what="gpus", text=text)


def _cpus(job: JobLine) -> Iterator[ReportAdvice]:
    used = job.cpus_used
    if used is None or job.asked.cpus <= 1:
        return
    # Slurm gives out whole cores, and every node of a job has at least one.
    enough = max(1, job.asked.nodes, math.ceil(used * _RESERVE))
    if enough <= _WORTH * job.asked.cpus:
        text = f"It kept {used:.2g} of {job.asked.cpus} CPUs at work. Ask for {enough}."
        yield ReportAdvice(what="cpus", text=text)


def _memory(job: JobLine, measured: MeasuredUsage) -> Iterator[ReportAdvice]:
    asked, nodes = job.asked.memory_bytes, max(1, job.asked.nodes)
    if job.state == JobState.OUT_OF_MEMORY or measured.oom_kills:
        more = _round_memory(max(asked / nodes, measured.memory_peak_node_bytes or 0) * 1.5)
        text = f"It ran out of memory. Ask for {format_bytes(more)}{_each(nodes)} or more."
        yield ReportAdvice(what="memory", text=text)
        return
    peak = measured.memory_peak_node_bytes
    if not peak or not asked or job.elapsed_seconds < _SHORT_SECONDS:
        return
    enough = _round_memory(peak * _RESERVE)
    if enough <= _WORTH * asked / nodes:
        text = (
            f"It used {format_bytes(peak)} of {format_bytes(asked / nodes)}{_each(nodes)}."
            f" Ask for {format_bytes(enough)}."
        )
        yield ReportAdvice(what="memory", text=text)


def _each(nodes: int) -> str:
    return " a node" if nodes > 1 else ""


def _round_memory(size: float) -> float:
    """Up to whole GiB, and at least one: the spawn form takes no other."""
    return max(1, math.ceil(size / _GIBIBYTE)) * _GIBIBYTE


def _time(job: JobLine) -> Iterator[ReportAdvice]:
    limit = job.asked.limit_seconds
    if not limit:
        return
    if job.state == JobState.TIMEOUT:
        text = (
            f"Its {format_duration(limit)} were not enough. Ask for more time, or save and"
            " resume from checkpoints."
        )
        yield ReportAdvice(what="time", text=text)
    elif job.state == JobState.COMPLETED:
        enough = math.ceil(job.elapsed_seconds * _RESERVE / 300) * 300
        if enough <= _WORTH * limit:
            text = (
                f"It took {format_duration(job.elapsed_seconds)} of {format_duration(limit)}. Ask"
                f" for {format_duration(enough)}: shorter jobs start sooner."
            )
            yield ReportAdvice(what="time", text=text)
