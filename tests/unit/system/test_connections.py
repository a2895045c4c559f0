"""Which connection makes room for a new one, and which has waited too long."""

import pytest

from carme.system.connections import ConnectionPhase, ConnectionTable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Connections:
    """A table whose connections record when they are closed."""

    def __init__(self, most: int) -> None:
        self.clock = Clock()
        self.table = ConnectionTable(most, self.clock)
        self.closed: list[str] = []

    def add(self, name: str, peer: str, phase=ConnectionPhase.REQUEST, known=False):  # type: ignore[no-untyped-def]
        self.clock.now += 1
        tracked = self.table.add(peer, lambda: self.closed.append(name), 10)
        if tracked:
            self.table.enter(tracked, phase, 10)
            tracked.is_known = known
        return tracked


def test_the_oldest_of_the_greediest_peer_goes() -> None:
    connections = Connections(4)
    connections.add("one", "ann")
    for name in ("two", "three", "four", "five"):
        connections.add(name, "eve")
    assert connections.closed == ["two"]
    assert len(connections.table) == 4


def test_strangers_go_before_known_clients() -> None:
    connections = Connections(4)
    for name in ("one", "two", "three"):
        connections.add(name, "ann", known=True)
    connections.add("four", "eve")
    connections.add("five", "ben")
    assert connections.closed == ["four"]


def test_known_clients_between_requests_go_before_those_in_one() -> None:
    connections = Connections(3)
    connections.add("one", "ann", ConnectionPhase.BODY, known=True)
    connections.add("two", "ann", ConnectionPhase.ANSWER, known=True)
    connections.add("three", "ben", known=True)
    for name in ("four", "five", "six"):
        connections.add(name, "ben", ConnectionPhase.WORK)
    assert connections.closed == ["three", "one", "two"]


def test_nobody_loses_the_work_that_is_done_for_them() -> None:
    connections = Connections(2)
    for name in ("one", "two"):
        connections.add(name, "ann", ConnectionPhase.WORK)
    assert connections.add("three", "ben") is None
    assert connections.closed == []


@pytest.mark.parametrize("phase", ConnectionPhase)
def test_a_connection_whose_time_is_over_ends(phase: ConnectionPhase) -> None:
    connections = Connections(2)
    tracked = connections.add("one", "ann")
    connections.table.enter(tracked, phase, None if phase is ConnectionPhase.WORK else 5)
    connections.clock.now += 4.9
    connections.table.close_expired()
    assert connections.closed == []
    connections.clock.now += 0.2
    connections.table.close_expired()
    assert connections.closed == ([] if phase is ConnectionPhase.WORK else ["one"])
    connections.table.remove(tracked)
    assert len(connections.table) == 0
