"""Pipelines: the order in which each stage runs its passes (1F1B), and how long a step takes.

With interleaving each stage has several parts of the network (chunks). Micro-batches pass in groups
as large as the pipeline: a group passes the first chunk of all stages, then the second. A virtual
stage is one chunk on one stage; their number is `chunk * stages + stage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from carme.errors import InputError

MAX_SLOTS = 100_000
"""Passes that are computed one by one, in a millisecond or some; longer steps are extrapolated."""


class ScheduleSlot(NamedTuple):
    """Forward or backward pass of one micro-batch on one chunk of a stage."""

    backward: bool
    micro_batch: int
    chunk: int = 0


def warm_up_slots(stage: int, stages: int, micro_batches: int, interleave: int) -> int:
    """Forward passes of a stage before its first backward pass."""
    slots = stages - stage - 1
    if interleave > 1:
        # A group that is alone passes all chunks first.
        slots = 2 * slots + (interleave - 1) * min(stages, micro_batches)
    return min(slots, micro_batches * interleave)


def _slot(index: int, stages: int, micro_batches: int, interleave: int) -> tuple[int, int]:
    """Micro-batch and chunk of a stage's forward pass number `index`."""
    group, rest = divmod(index, stages * interleave)
    members = min(stages, micro_batches - group * stages)
    chunk, member = divmod(rest, members)
    return group * stages + member, chunk


def stage_schedule(
    stage: int, stages: int, micro_batches: int, interleave: int = 1
) -> Iterator[ScheduleSlot]:
    """The passes of a stage in order: forward to warm up, then alternating, then backward."""

    def forward(index: int) -> ScheduleSlot:
        return ScheduleSlot(False, *_slot(index, stages, micro_batches, interleave))

    def backward(index: int) -> ScheduleSlot:
        micro_batch, chunk = _slot(index, stages, micro_batches, interleave)
        return ScheduleSlot(True, micro_batch, interleave - 1 - chunk)

    total = micro_batches * interleave
    warm_up = warm_up_slots(stage, stages, micro_batches, interleave)
    yield from (forward(index) for index in range(warm_up))
    for index in range(total - warm_up):
        yield forward(warm_up + index)
        yield backward(index)
    yield from (backward(index) for index in range(total - warm_up, total))


def makespan(
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    message_seconds: Sequence[float],
    micro_batches: int,
    interleave: int = 1,
) -> tuple[float, list[float]]:
    """Seconds of one step, and when each stage ends.

    forward_seconds[v] and backward_seconds[v] are of one micro-batch on virtual stage v,
    message_seconds[v] of a message from virtual stage v to v+1.
    """
    stages = len(forward_seconds) // interleave
    if stages == 1:
        total = micro_batches * (forward_seconds[0] + backward_seconds[0])
        return total, [total]
    # Steps are extrapolated by whole groups of micro-batches.
    steady = max(8, MAX_SLOTS // (2 * stages * stages * interleave)) * stages
    if micro_batches > steady:
        # In the steady state each further group adds the same time.
        rest = micro_batches % stages
        earlier, _ = _slot_by_slot(
            forward_seconds, backward_seconds, message_seconds, steady - 2 * stages + rest,
            interleave,
        )  # fmt: skip
        total, ends = _slot_by_slot(
            forward_seconds, backward_seconds, message_seconds, steady + rest, interleave
        )
        added = (total - earlier) / (2 * stages) * (micro_batches - steady - rest)
        return total + added, [end + added for end in ends]
    return _slot_by_slot(
        forward_seconds, backward_seconds, message_seconds, micro_batches, interleave
    )


def _slot_by_slot(
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    message_seconds: Sequence[float],
    micro_batches: int,
    interleave: int,
) -> tuple[float, list[float]]:
    # Numba takes half a second to import: only pipelines need it.
    from carme.simulator.compiled_pipeline import pipeline_ends, plain_pipeline_ends

    forward, backward, messages = (
        np.asarray(values, dtype=float)
        for values in (forward_seconds, backward_seconds, message_seconds)
    )
    if interleave == 1:
        ends = plain_pipeline_ends(forward, backward, messages, micro_batches)
    else:
        ends = pipeline_ends(forward, backward, messages, micro_batches, interleave)
    if ends[0] < 0:
        raise InputError(
            f"{micro_batches} micro-batches in {len(ends)} stages with {interleave} chunks each",
            f"use a multiple of {len(ends)} micro-batches",
        )
    return float(ends.max()), ends.tolist()
