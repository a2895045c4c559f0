"""Which connection makes room for a new one, and which has waited too long."""

import pytest

from carme.system.connections import ConnectionPhase, ConnectionTable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Connections:
    """A table whose connections record when they are closed."""

    def __init__(self, most: int, proxies: tuple[str, ...] = ()) -> None:
        self.clock = Clock()
        self.table = ConnectionTable(most, self.clock, proxies)
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
    for name, peer in (("one", "ann"), ("two", "ann"), ("three", "ada")):
        connections.add(name, peer, known=True)
    connections.add("four", "eve")
    connections.add("five", "ben")
    assert connections.closed == ["four"]


@pytest.mark.parametrize("proxies", [(), ("ann",)])
def test_who_has_more_than_half_makes_room_also_if_known(proxies: tuple[str, ...]) -> None:
    connections = Connections(4, proxies)
    for name in ("one", "two", "three"):
        connections.add(name, "ann", ConnectionPhase.BODY, known=True)
    connections.add("four", "eve")
    connections.add("five", "ben")
    assert connections.closed == (["four"] if proxies else ["one"])


def test_a_proxys_connections_are_those_of_its_clients() -> None:
    connections = Connections(4, ("proxy",))
    for name, client in (("one", "ann"), ("two", "eve"), ("three", "eve"), ("four", "eve")):
        connections.add(name, "proxy", ConnectionPhase.TURN).client = client
    connections.add("five", "proxy")
    assert connections.closed == ["two"]


def test_known_clients_between_requests_go_before_those_in_one() -> None:
    connections = Connections(4)
    connections.add("one", "ann", ConnectionPhase.BODY, known=True)
    connections.add("two", "ann", ConnectionPhase.ANSWER, known=True)
    connections.add("three", "ben", known=True)
    connections.add("four", "ada", ConnectionPhase.TURN, known=True)
    for number in range(4):
        connections.add(f"new {number}", f"user {number}", ConnectionPhase.WORK)
    assert connections.closed == ["three", "one", "two", "four"]


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
