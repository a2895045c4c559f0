"""Advice on a request in the spawn form: a smaller or better one, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Literal

from carme.errors import CarmeError
from carme.predict.cluster_hardware import requested_gpu_type
from carme.predict.estimates import Estimate, FrozenModel
from carme.predict.prediction import Prediction
from carme.requests.placement import all_problems, eligible_nodes
from carme.requests.resource_request import AdviceRequest
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import request_time_limits
from carme.slurm.gres import total_gpus
from carme.slurm.limits import Limit
from carme.slurm.models import Node
from carme.slurm.snapshot import Snapshot
from carme.units import counted, format_duration, format_joules, hours_within

SMALLER_TIME_RATIO = 1.15
"""Fewer GPUs are suggested if training takes less than this many times as long."""
BETTER_TIME_RATIO, BETTER_ENERGY_RATIO = 1.02, 0.8
"""Other GPUs are suggested if they take at most these shares of the time and of the energy."""

PredictOther = Callable[[AdviceRequest], Prediction]
Alternative = tuple[AdviceRequest, Prediction]


class Suggestion(FrozenModel):
    """Another request on as many nodes: only what differs is set."""

    kind: Literal["smaller", "better", "time", "memory"]
    why: str
    gpus: int | None = None
    gpu_type: str | None = None
    hours: float | None = None


class QueueWait(FrozenModel):
    """When the job would start: now, when Slurm expects it, or not known."""

    starts_now: bool
    expected_at: int | None = None
    words: str


class RequestAdvice(FrozenModel):
    wait: QueueWait
    prediction: Prediction | None
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...] = ()


def placement_notes(request: AdviceRequest, prediction: Prediction) -> tuple[str, ...]:
    """A note if the prediction has the GPUs on fewer nodes than the request."""
    if prediction.nodes == request.nodes:
        return ()
    nodes = counted(prediction.nodes, "node")
    return (
        f"these figures are for {prediction.gpus} x {prediction.gpu} on {nodes}: spread over"
        f" {request.nodes} nodes, training takes longer and more charged energy",
    )


def suggestions(
    request: AdviceRequest,
    snapshot: Snapshot,
    prediction: Prediction,
    predict_other: PredictOther,
    user: SlurmUser | None = None,
    now: float = 0,
    max_nodes: int | None = None,
) -> Iterator[Suggestion]:
    """Requests that would be better, of those that the form does not refuse for new reasons;
    `max_nodes` is the site's limit for a session."""
    user = user or SlurmUser("")
    problems = all_problems(request, snapshot, user, now, max_nodes).keys()
    allowed = (
        alternative
        for alternative in _alternatives(request, snapshot)
        if not all_problems(alternative, snapshot, user, now, max_nodes).keys() - problems
    )
    # Figures for other nodes than asked for are none of the alternative's.
    fitting = [
        (alternative, figures)
        for alternative, figures in _predictions(allowed, predict_other)
        if figures.nodes == alternative.nodes and figures.memory.fits
    ]
    if not prediction.memory.fits:
        if fitting:
            alternative, _ = min(fitting, key=lambda pair: pair[1].gpu_energy.value)
            why = f"the model does not fit: {prediction.memory.why_not}"
            yield _change(request, alternative, "memory", why)
        return
    if prediction.nodes != request.nodes:
        return
    yield from _smaller(request, prediction, fitting)
    yield from _better(request, prediction, fitting)
    limits = request_time_limits(request, snapshot, user, now)
    shortest = min(limits, key=lambda limit: limit.maximum, default=None)
    yield from _time(request, prediction.time, shortest)


def _smaller(
    request: AdviceRequest, prediction: Prediction, fitting: list[Alternative]
) -> Iterator[Suggestion]:
    """Fewer GPUs of the same type; predictions for both have the same error, so values compare."""
    seconds = prediction.time.value
    smaller = [
        (alternative, figures)
        for alternative, figures in fitting
        if alternative.gpus < request.gpus
        and alternative.gpu_type == request.gpu_type
        and figures.time.value < SMALLER_TIME_RATIO * seconds
    ]
    if not smaller:
        return
    alternative, figures = min(smaller, key=lambda pair: pair[0].gpus)
    longer = max(figures.time.value / seconds - 1, 0.0)
    per_node = f" on each of {request.nodes} nodes" if request.nodes > 1 else ""
    yield _change(
        request, alternative, "smaller",
        f"{alternative.gpus} instead of {request.gpus} GPUs{per_node} take only {longer:.0%} longer"
        f" ({format_duration(figures.time.value)})",
    )  # fmt: skip


def _better(
    request: AdviceRequest, prediction: Prediction, fitting: list[Alternative]
) -> Iterator[Suggestion]:
    """Less energy in about the same time."""
    time, energy = prediction.time, prediction.node_energy
    better = [
        (alternative, figures)
        for alternative, figures in fitting
        if figures.node_energy.value < BETTER_ENERGY_RATIO * energy.value
        and figures.time.value <= BETTER_TIME_RATIO * time.value
    ]
    if not better:
        return
    alternative, figures = min(better, key=lambda pair: pair[1].node_energy.value)
    yield _change(
        request, alternative, "better",
        f"{_compare_times(figures.time, time)} and {_compare_energy(figures.node_energy, energy)}",
    )  # fmt: skip


def _compare_times(other: Estimate, current: Estimate) -> str:
    """How two times compare; "not slower" only if the intervals say so."""
    if other.high <= current.low:
        return f"not slower ({format_duration(other.value)})"
    return f"no clear difference in time {_intervals(other, current, format_duration)}"


def _compare_energy(other: Estimate, current: Estimate) -> str:
    """How two energies compare, with their intervals where these overlap."""

    def write(joules: float) -> str:
        return format_joules(joules, current.value)

    text = f"{write(other.value)} instead of {write(current.value)} of charged energy"
    if other.high <= current.low:
        return text
    return f"about {text} {_intervals(other, current, write)}"


def _intervals(other: Estimate, current: Estimate, write: Callable[[float], str]) -> str:
    texts = [f"{write(each.low)} to {write(each.high)}" for each in (other, current)]
    return f"({' against '.join(texts)}, 90 % intervals)"


def _time(request: AdviceRequest, time: Estimate, limit: Limit | None) -> Iterator[Suggestion]:
    needed_hours = time.high / 3600
    allowed_hours = hours_within(limit.maximum) if limit else inf
    if limit and time.value > limit.maximum:
        source = limit.source.removeprefix("partition ")
        yield Suggestion(
            kind="time", hours=allowed_hours if request.hours < allowed_hours else None,
            why=f"training takes about {format_duration(time.value)}, longer than the "
            f"{format_duration(limit.maximum)} that {source} allows: save and resume from"
            " checkpoints",
        )  # fmt: skip
    elif time.value > request.hours * 3600:
        yield Suggestion(
            kind="time", hours=min(round(needed_hours + 0.05, 1), allowed_hours),
            why=f"training takes about {format_duration(time.value)}, up to "
            f"{format_duration(time.high)}, and the session ends before",
        )  # fmt: skip
    elif needed_hours < request.hours / 3 and request.hours > 1:
        yield Suggestion(
            kind="time", hours=min(max(round(1.2 * needed_hours + 0.05, 1), 0.5), allowed_hours),
            why=f"training takes {format_duration(time.high)} at most; shorter jobs start"
            " sooner, as they fit into gaps",
        )  # fmt: skip


def _alternatives(request: AdviceRequest, snapshot: Snapshot) -> Iterator[AdviceRequest]:
    """Other counts of the same GPUs, and the other GPUs of the nodes that the request may use."""
    nodes = eligible_nodes(request, snapshot)
    own_type = requested_gpu_type(request, snapshot)
    for kind in filter(None, total_gpus(node.gpus for node in nodes)):
        most = _gpus_on_each_node(nodes, request.nodes, kind)
        for count in (1, 2, 4, 8, 16):
            if count > most or (kind == own_type and count == request.gpus):
                continue
            gpu_type = request.gpu_type if kind == own_type else kind
            yield request.model_copy(update={"gpus": count, "gpu_type": gpu_type})


def _predictions(
    alternatives: Iterable[AdviceRequest], predict_other: PredictOther
) -> Iterator[Alternative]:
    """Each request with its prediction, where one is possible."""
    for alternative in alternatives:
        try:
            yield alternative, predict_other(alternative)
        except CarmeError:
            continue


def _gpus_on_each_node(nodes: Sequence[Node], node_count: int, kind: str) -> int:
    """The GPUs of a type that each of `node_count` nodes has."""
    counts = sorted((node.gpus.get(kind, 0) for node in nodes), reverse=True)
    return counts[node_count - 1] if node_count <= len(counts) else 0


def _change(
    request: AdviceRequest,
    alternative: AdviceRequest,
    kind: Literal["smaller", "better", "memory"],
    why: str,
) -> Suggestion:
    return Suggestion(
        kind=kind,
        why=why,
        gpus=alternative.gpus if alternative.gpus != request.gpus else None,
        gpu_type=alternative.gpu_type if alternative.gpu_type != request.gpu_type else None,
    )
