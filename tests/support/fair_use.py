"""Calls at a gate, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from carme.fair_use import FairGate, GateTicket


@contextmanager
def waiting(gate: FairGate, user: str) -> Iterator[GateTicket]:
    """A further call of a user, which waits for the duration of the context."""
    ticket = gate.enter(user)
    assert not ticket.passed.done()
    try:
        yield ticket
    finally:
        ticket.leave()
