"""Event queues in compiled code: the same models as in `models.py`, and the same answers.

Ties are broken as in the engine: by (time, sequence), where the sequence counts when an event was
put on the calendar.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from carme.simulator.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled
def shared_link(compute: Floats, transfer: float) -> tuple[Floats, Floats]:
    """Begin and end of every transfer of workers that compute, then use one first-come link.

    compute[w, k]: seconds of worker w's k-th computation; its transfer takes `transfer` seconds.
    """
    workers, rounds = compute.shape
    begin = np.empty((workers, rounds))
    end = np.empty((workers, rounds))
    # A heap of (time, sequence, worker): one waiting event a worker, so its size never changes
    # and the root is replaced in place.
    time = np.empty(workers)
    sequence = np.arange(workers)
    who = np.arange(workers)
    done = np.zeros(workers, dtype=np.int64)
    for worker in range(workers):
        time[worker] = compute[worker, 0] if rounds else np.inf
    for root in range(workers // 2 - 1, -1, -1):
        _sift(time, sequence, who, root)
    free_at = 0.0
    for count in range(workers * rounds):
        worker = who[0]
        step = done[worker]
        start = time[0] if time[0] > free_at else free_at
        free_at = start + transfer
        begin[worker, step] = start
        end[worker, step] = free_at
        done[worker] = step + 1
        time[0] = free_at + compute[worker, step + 1] if step + 1 < rounds else np.inf
        sequence[0] = workers + count
        _sift(time, sequence, who, 0)
    return begin, end


@compiled
def _sift(time: Floats, sequence: Ints, who: Ints, root: int) -> None:
    """Let the entry at `root` sink to its place."""
    size = len(time)
    key, rank, worker = time[root], sequence[root], who[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            time[right] < time[child]
            or (time[right] == time[child] and sequence[right] < sequence[child])
        ):
            child = right
        if key < time[child] or (key == time[child] and rank < sequence[child]):
            break
        time[root], sequence[root], who[root] = time[child], sequence[child], who[child]
        root = child
    time[root], sequence[root], who[root] = key, rank, worker


@compiled
def averaging(
    slaves: Ints, work: Floats, near: int, near_seconds: float, far_seconds: float
) -> tuple[Floats, Floats]:
    """End of every iteration of a master and its slaves, and the seconds that slaves computed.

    slaves[i] take part in iteration i; work holds the packages' compute seconds in order. The
    first `near` slaves are on the master's host (their link takes `near_seconds` a message), the
    others share the network (`far_seconds`); both links are first come, first served.
    """
    ends = np.empty(len(slaves))
    busy = np.zeros(slaves.max())
    package = 0
    now = near_free = far_free = 0.0
    for i in range(len(slaves)):
        count = slaves[i]
        ready = np.full(count, np.inf)  # when each slave has its new model and asks for the link
        sent = returned = 0
        asked = now  # the master sends to one slave after the other
        while returned < count:
            slave = int(np.argmin(ready))
            # A slave that is done at the same moment was put on the calendar before the master.
            sending = sent < count and asked < ready[slave]
            if sending:
                slave = sent
            begin = asked if sending else ready[slave]
            if slave < near:
                near_free = end = max(begin, near_free) + near_seconds
            else:
                far_free = end = max(begin, far_free) + far_seconds
            if sending:
                seconds = work[package % len(work)]
                package += 1
                busy[slave] += seconds
                ready[slave] = end + seconds
                sent += 1
                asked = end
            else:
                ready[slave] = np.inf
                returned += 1
            now = max(now, end)
        ends[i] = now
    return ends, busy
