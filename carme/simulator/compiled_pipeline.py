"""The passes of a pipeline one by one, compiled by Numba. `pipeline_schedule` has the schedule in
Python; tests compare the two."""

from __future__ import annotations

import numpy as np

from carme.simulator.compilation import compiled
from carme.simulator.workload import Floats


@compiled
def plain_pipeline_ends(
    forward_seconds: Floats,
    backward_seconds: Floats,
    message_seconds: Floats,
    micro_batches: int,
) -> Floats:
    """When each stage of a pipeline without interleaving ends.

    In round i each stage runs the forward pass of micro-batch i, then the backward pass of the
    micro-batch that is as many behind as stages follow. What a backward pass waits for was computed
    in the round before.
    """
    stages = len(forward_seconds)
    clock = np.zeros(stages)
    backward_done = np.zeros(stages)
    for i in range(micro_batches + stages - 1):
        if i < micro_batches:
            arrival = 0.0
            for s in range(stages):
                clock[s] = max(clock[s], arrival) + forward_seconds[s]
                if s < stages - 1:
                    arrival = clock[s] + message_seconds[s]
        for s in range(stages):
            micro_batch = i - (stages - s - 1)
            if 0 <= micro_batch < micro_batches:
                if s < stages - 1:
                    clock[s] = max(clock[s], backward_done[s + 1] + message_seconds[s])
                clock[s] += backward_seconds[s]
                backward_done[s] = clock[s]
    return clock


@compiled
def pipeline_ends(
    forward_seconds: Floats,
    backward_seconds: Floats,
    message_seconds: Floats,
    micro_batches: int,
    interleave: int,
) -> Floats:
    """When each stage ends; -1 everywhere if its schedule waits for itself.

    The seconds are of virtual stages, `chunk * stages + stage`; a message goes to the next one.
    """
    virtual = len(forward_seconds)
    stages = virtual // interleave
    total = micro_batches * interleave
    forward_done = np.full((virtual, micro_batches), -1.0)
    backward_done = np.full((virtual, micro_batches), -1.0)
    clock = np.zeros(stages)
    forwards = np.zeros(stages, dtype=np.int64)
    backwards = np.zeros(stages, dtype=np.int64)
    warm_up = np.empty(stages, dtype=np.int64)
    for s in range(stages):
        slots = stages - s - 1
        if interleave > 1:
            slots = 2 * slots + (interleave - 1) * min(stages, micro_batches)
        warm_up[s] = min(slots, total)
    remaining = 2 * total * stages
    while remaining > 0:
        before = remaining
        # Forward passes go down the stages, backward passes up: sweep both ways.
        for sweep in range(2 * stages):
            s = sweep if sweep < stages else 2 * stages - 1 - sweep
            while backwards[s] < total:
                # Forward until as many wait for their backward pass as warmed up, and one more.
                is_forward = forwards[s] < total and forwards[s] - backwards[s] <= warm_up[s]
                index = forwards[s] if is_forward else backwards[s]
                group = index // (stages * interleave)
                rest = index - group * stages * interleave
                members = min(stages, micro_batches - group * stages)
                chunk = rest // members
                micro_batch = group * stages + rest - chunk * members
                if is_forward:
                    v = chunk * stages + s
                    ready = 0.0
                    if v > 0:
                        ready = forward_done[v - 1, micro_batch]
                        if ready < 0:
                            break
                        ready += message_seconds[v - 1]
                    clock[s] = max(clock[s], ready) + forward_seconds[v]
                    forward_done[v, micro_batch] = clock[s]
                    forwards[s] += 1
                else:
                    v = (interleave - 1 - chunk) * stages + s
                    if v < virtual - 1:
                        ready = backward_done[v + 1, micro_batch]
                        if ready >= 0:
                            ready += message_seconds[v]
                    else:
                        ready = forward_done[v, micro_batch]
                    if ready < 0:
                        break
                    clock[s] = max(clock[s], ready) + backward_seconds[v]
                    backward_done[v, micro_batch] = clock[s]
                    backwards[s] += 1
                remaining -= 1
        if remaining == before:
            return np.full(stages, -1.0)
    return clock
