"""Event queues compiled by Numba, with the same results as the models in `models.py`.

Ties are broken as in the engine: by (time, sequence), where the sequence counts when an event was
put on the calendar.
"""

from __future__ import annotations

import numpy as np

from carme.simulator.compilation import compiled
from carme.simulator.plans import Ints
from carme.simulator.workload import Floats


@compiled
def shared_link(compute: Floats, transfer: float) -> tuple[Floats, Floats]:
    """Start and end of every transfer of workers that compute, then use one first-come link.

    compute[w, k]: seconds of worker w's k-th computation; its transfer takes `transfer` seconds.
    """
    workers, rounds = compute.shape
    begin = np.empty((workers, rounds))
    end = np.empty((workers, rounds))
    # A tournament of (time, sequence): every worker has one waiting event, the root is the next.
    # Replacing the winner's event replays one match a level, half of what a heap compares.
    leaves = 1
    while leaves < workers:
        leaves *= 2
    time = np.full(leaves, np.inf)
    sequence = np.arange(leaves)
    winner = np.empty(2 * leaves, dtype=np.int64)
    for leaf in range(leaves):
        winner[leaves + leaf] = leaf
        if leaf < workers and rounds:
            time[leaf] = compute[leaf, 0]
    for match in range(leaves - 1, 0, -1):
        winner[match] = _earlier(time, sequence, winner[2 * match], winner[2 * match + 1])
    done = np.zeros(leaves, dtype=np.int64)
    free_at = 0.0
    for count in range(workers * rounds):
        worker = winner[1]
        step = done[worker]
        ready = time[worker]
        start = ready if ready > free_at else free_at
        free_at = start + transfer
        begin[worker, step] = start
        end[worker, step] = free_at
        step += 1
        done[worker] = step
        time[worker] = free_at + compute[worker, step] if step < rounds else np.inf
        sequence[worker] = leaves + count
        best = worker
        match = leaves + worker
        while match > 1:
            best = _earlier(time, sequence, best, winner[match ^ 1])
            match >>= 1
            winner[match] = best
    return begin, end


@compiled
def _earlier(time: Floats, sequence: Ints, one: int, other: int) -> int:
    """Which of two events is first."""
    if time[one] != time[other]:
        return one if time[one] < time[other] else other
    return one if sequence[one] < sequence[other] else other


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
        send_at = now  # the master sends to one slave after the other
        while returned < count:
            slave = int(np.argmin(ready))
            # A slave that is done at the same moment was put on the calendar before the master.
            sending = sent < count and send_at < ready[slave]
            if sending:
                slave = sent
            begin = send_at if sending else ready[slave]
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
                send_at = end
            else:
                ready[slave] = np.inf
                returned += 1
            now = max(now, end)
        ends[i] = now
    return ends, busy
