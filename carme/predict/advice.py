"""A choice in the spawn form, and what would be a smaller or better one, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from carme.errors import CarmeError
from carme.predict.estimates import FrozenModel
from carme.predict.prediction import Prediction
from carme.slurm.snapshot import Snapshot
from carme.units import format_duration, format_joules, hours_within

GIB = 2**30
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]


class AdviceRequest(FrozenModel):
    """What the form holds; for a declared workload also how it is trained."""

    partition: Name
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    """GPUs, cores and memory are those of each node."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_type: Name = ""
    cpus: Annotated[int, Field(ge=1, le=4096)] = 1
    memory_gb: Annotated[int, Field(ge=1, le=65536)] = 1
    hours: Annotated[float, Field(gt=0, le=24 * 365)] = 1
    workload: Annotated[str, Field(pattern=r"^[A-Za-z0-9._ -]{0,64}$")] = ""
    batch: Annotated[int, Field(ge=1, le=10**7)] | None = None
    epochs: Annotated[float, Field(gt=0, le=10**6)] | None = None


class Suggestion(FrozenModel):
    """Another choice on as many nodes: only what differs is set."""

    kind: Literal["smaller", "better", "time", "memory"]
    why: str
    gpus: int | None = None
    gpu_type: str | None = None
    hours: float | None = None


class QueueWait(FrozenModel):
    """When it would start: now, when Slurm expects it, or not known."""

    starts_now: bool
    expected_at: int | None = None
    words: str


class RequestAdvice(FrozenModel):
    wait: QueueWait
    prediction: Prediction | None
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...] = ()


def starts_now(wish: AdviceRequest, snapshot: Snapshot) -> bool:
    """Whether enough open nodes of the partition have all of this free."""
    partition = snapshot.partition(wish.partition)
    if partition is None or not partition.up:
        return False
    fitting = sum(
        _free(node.gpus_free, wish.gpu_type) >= wish.gpus
        and node.cpus_free >= wish.cpus
        and node.memory_free_bytes >= wish.memory_gb * GIB
        for node in snapshot.nodes_in(partition.name)
        if node.open
    )
    return fitting >= wish.nodes


def _free(gpus: dict[str, int], kind: str) -> int:
    return gpus.get(kind, 0) if kind else sum(gpus.values())


def placing(wish: AdviceRequest, here: Prediction) -> tuple[str, ...]:
    """What to say where a prediction has the GPUs on fewer nodes than are asked for."""
    if here.nodes == wish.nodes:
        return ()
    on = "1 node" if here.nodes == 1 else f"{here.nodes} nodes"
    return (
        f"these figures are for {here.gpus} x {here.gpu} on {on}: spread over {wish.nodes} nodes,"
        " training takes longer and more node energy",
    )


def suggestions(
    wish: AdviceRequest,
    snapshot: Snapshot,
    here: Prediction,
    ask: Callable[[AdviceRequest], Prediction],
) -> Iterator[Suggestion]:
    """What to ask for instead; `ask` predicts another wish."""
    others = list(_others(wish, snapshot, ask))
    # A prediction fills nodes one by one; of GPUs that lie further apart it would say too little.
    others = [(w, p) for w, p in others if p.nodes == w.nodes]
    if not here.memory.fits:
        fitting = [(w, p) for w, p in others if p.memory.fits]
        if fitting:
            other, p = min(fitting, key=lambda pair: pair[1].gpu_energy.value)
            yield _change(wish, other, "memory", f"the model does not fit: {here.memory.why_not}")
        return
    if here.nodes != wish.nodes:
        return
    fitting = [(w, p) for w, p in others if p.memory.fits]
    small = [(w, p) for w, p in fitting if w.gpus < wish.gpus and w.gpu_type == wish.gpu_type]
    nearly = [(w, p) for w, p in small if p.time.value < 1.15 * here.time.value]
    if nearly:
        other, p = min(nearly, key=lambda pair: pair[0].gpus)
        more = max(p.time.value / here.time.value - 1, 0.0)
        yield _change(
            wish, other, "smaller",
            f"{other.gpus} instead of {wish.gpus} GPUs{_each(wish)} take only {more:.0%} longer"
            f" ({format_duration(p.time.value)})",
        )  # fmt: skip
    better = [
        (w, p) for w, p in fitting
        if p.node_energy.value < 0.8 * here.node_energy.value
        and p.time.value <= 1.02 * here.time.value
    ]  # fmt: skip
    if better:
        other, p = min(better, key=lambda pair: pair[1].node_energy.value)
        now = here.node_energy.value
        yield _change(
            wish, other, "better",
            f"not slower ({format_duration(p.time.value)}) and"
            f" {format_joules(p.node_energy.value, now)} instead of {format_joules(now)} of node"
            " energy",
        )  # fmt: skip
    partition = snapshot.partition(wish.partition)
    yield from _time(wish, here, partition.max_seconds if partition else None)


def _time(wish: AdviceRequest, here: Prediction, most: int | None) -> Iterator[Suggestion]:
    needed = here.time.high / 3600
    allowed = hours_within(most) if most else inf
    if most and here.time.value > most:
        yield Suggestion(
            kind="time", hours=allowed if wish.hours < allowed else None,
            why=f"training takes about {format_duration(here.time.value)}, longer than the "
            f"{format_duration(most)} that {wish.partition} allows: save and resume from"
            " checkpoints",
        )  # fmt: skip
        return
    if here.time.value > wish.hours * 3600:
        yield Suggestion(
            kind="time", hours=min(round(needed + 0.05, 1), allowed),
            why=f"training takes about {format_duration(here.time.value)}, up to "
            f"{format_duration(here.time.high)}, and the session ends before",
        )  # fmt: skip
    elif needed < wish.hours / 3 and wish.hours > 1:
        yield Suggestion(
            kind="time", hours=min(max(round(1.2 * needed + 0.05, 1), 0.5), allowed),
            why=f"training takes {format_duration(here.time.high)} at most; shorter jobs start"
            " sooner, for they fit into gaps",
        )  # fmt: skip


def _others(
    wish: AdviceRequest, snapshot: Snapshot, ask: Callable[[AdviceRequest], Prediction]
) -> Iterator[tuple[AdviceRequest, Prediction]]:
    """Other counts of the same GPUs, and the partition's other GPUs, as far as they can run."""
    kinds = {k: c for k, c in snapshot.largest_free_block(wish.partition).items() if k}
    whole = {kind: _most(wish, snapshot, kind) for kind in kinds}
    mine = wish.gpu_type or max(whole, key=lambda k: whole[k], default="")
    for kind, most in whole.items():
        for count in (1, 2, 4, 8, 16):
            if count > most or (kind == mine and count == wish.gpus):
                continue
            kept = wish.gpu_type if kind == mine else kind
            other = wish.model_copy(update={"gpus": count, "gpu_type": kept})
            try:
                yield other, ask(other)
            except CarmeError:
                continue


def _most(wish: AdviceRequest, snapshot: Snapshot, kind: str) -> int:
    """GPUs of a kind that each of so many nodes has."""
    counts = sorted((n.gpus.get(kind, 0) for n in snapshot.nodes_in(wish.partition)), reverse=True)
    return counts[wish.nodes - 1] if wish.nodes <= len(counts) else 0


def _each(wish: AdviceRequest) -> str:
    return f" on each of {wish.nodes} nodes" if wish.nodes > 1 else ""


def _change(
    wish: AdviceRequest,
    other: AdviceRequest,
    kind: Literal["smaller", "better", "memory"],
    why: str,
) -> Suggestion:
    return Suggestion(
        kind=kind,
        why=why,
        gpus=other.gpus if other.gpus != wish.gpus else None,
        gpu_type=other.gpu_type if other.gpu_type != wish.gpu_type else None,
    )
