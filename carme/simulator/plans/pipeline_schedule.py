"""The 1F1B pipeline schedule: the order of passes on each stage, and when each pass ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MOST_SLOTS = 20_000
"""Slots computed one by one, in some 0.01 s; longer steps are extrapolated."""


class ScheduleSlot(NamedTuple):
    """Forward or backward pass of one micro-batch on one stage."""

    backward: bool
    micro_batch: int


def stage_schedule(stage: int, stages: int, micro_batches: int) -> Iterator[ScheduleSlot]:
    """The passes of a stage in order: forward to warm up, then alternating, then backward."""
    warm_up = min(stages - stage - 1, micro_batches)
    for index in range(warm_up):
        yield ScheduleSlot(False, index)
    for index in range(micro_batches - warm_up):
        yield ScheduleSlot(False, warm_up + index)
        yield ScheduleSlot(True, index)
    for index in range(micro_batches - warm_up, micro_batches):
        yield ScheduleSlot(True, index)


def makespan(
    forward: list[float], backward: list[float], send: list[float], micro_batches: int
) -> tuple[float, list[float]]:
    """Seconds of one step, and when each stage ends.

    forward[s], backward[s]: seconds of one micro-batch on stage s; send[s]: of a message from stage
    s to s+1.
    """
    stages = len(forward)
    if stages == 1:
        total = micro_batches * (forward[0] + backward[0])
        return total, [total]
    if len(set(forward)) == len(set(backward)) == 1 and not any(send):
        # Equal stages: the closed form, bubble (p−1)/(m+p−1).
        total = (micro_batches + stages - 1) * (forward[0] + backward[0])
        return total, [total - s * backward[0] for s in range(stages)]
    steady = max(8 * stages, MOST_SLOTS // (2 * stages))
    if micro_batches > steady:
        # In the steady state each further micro-batch adds the same time.
        earlier, _ = _slot_by_slot(forward, backward, send, steady - 2 * stages)
        total, ends = _slot_by_slot(forward, backward, send, steady)
        added = (total - earlier) / (2 * stages) * (micro_batches - steady)
        return total + added, [end + added for end in ends]
    return _slot_by_slot(forward, backward, send, micro_batches)


def _slot_by_slot(
    forward: list[float], backward: list[float], send: list[float], micro_batches: int
) -> tuple[float, list[float]]:
    stages = len(forward)
    queues = [list(stage_schedule(s, stages, micro_batches)) for s in range(stages)]
    done: list[dict[ScheduleSlot, float]] = [{} for _ in range(stages)]
    clock = [0.0] * stages
    position = [0] * stages
    left = sum(map(len, queues))
    while left:
        for s in range(stages):
            while position[s] < len(queues[s]):
                slot = queues[s][position[s]]
                ready = _input_ready(slot, s, stages, done, send)
                if ready is None:
                    break
                begin = max(clock[s], ready)
                clock[s] = begin + (backward[s] if slot.backward else forward[s])
                done[s][slot] = clock[s]
                position[s] += 1
                left -= 1
    return max(clock), clock


def _input_ready(
    slot: ScheduleSlot,
    stage: int,
    stages: int,
    done: list[dict[ScheduleSlot, float]],
    send: list[float],
) -> float | None:
    """When the input of a slot arrives from the neighbour; None if that slot has not ended."""
    if slot.backward:
        if stage == stages - 1:
            return done[stage].get(ScheduleSlot(False, slot.micro_batch))
        sent = done[stage + 1].get(slot)
        return None if sent is None else sent + send[stage]
    if stage == 0:
        return 0.0
    sent = done[stage - 1].get(slot)
    return None if sent is None else sent + send[stage - 1]
