"""The 1F1B pipeline schedule: order of work on each stage, and when each piece is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MOST_SLOTS = 20_000
"""Worked out one by one, some hundredths of a second; longer steps are continued evenly."""


class ScheduleSlot(NamedTuple):
    """Forward or backward of one micro-batch on one stage."""

    backward: bool
    micro_batch: int


def order(stage: int, stages: int, micro_batches: int) -> Iterator[ScheduleSlot]:
    """What a stage does, in order: warm up with forwards, alternate, drain with backwards."""
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
    """Seconds of one step and the end of each stage.

    forward[s], backward[s]: one micro-batch on stage s; send[s]: a message between s and s+1.
    """
    stages = len(forward)
    if stages == 1:
        total = micro_batches * (forward[0] + backward[0])
        return total, [total]
    if len(set(forward)) == len(set(backward)) == 1 and not any(send):
        # Equal stages: the closed form, bubble (p−1)/(m+p−1).
        piece = forward[0] + backward[0]
        total = (micro_batches + stages - 1) * piece
        return total, [total - s * backward[0] for s in range(stages)]
    enough = max(8 * stages, MOST_SLOTS // (2 * stages))
    if micro_batches > enough:
        # By then the pipeline beats evenly: each further micro-batch adds the same.
        before, _ = _slot_by_slot(forward, backward, send, enough - 2 * stages)
        total, ends = _slot_by_slot(forward, backward, send, enough)
        more = (total - before) / (2 * stages) * (micro_batches - enough)
        return total + more, [end + more for end in ends]
    return _slot_by_slot(forward, backward, send, micro_batches)


def _slot_by_slot(
    forward: list[float], backward: list[float], send: list[float], micro_batches: int
) -> tuple[float, list[float]]:
    stages = len(forward)
    queues = [list(order(s, stages, micro_batches)) for s in range(stages)]
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
    """When the neighbour's output is here; None while it is not known."""
    if slot.backward:
        if stage == stages - 1:
            return done[stage].get(ScheduleSlot(False, slot.micro_batch))
        sent = done[stage + 1].get(slot)
        return None if sent is None else sent + send[stage]
    if stage == 0:
        return 0.0
    sent = done[stage - 1].get(slot)
    return None if sent is None else sent + send[stage - 1]
