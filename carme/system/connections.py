"""The open connections of a server: how many there may be, how long each may wait, and which one
makes room for a new one.

A server that accepts no more, or drops the newest, is closed to everybody by whoever opens enough
connections. Here a new connection always gets in, and the one that goes has waited longest among
those of the client that has most. Who sends a whole request at once is therefore served.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum


class ConnectionPhase(Enum):
    """What a connection waits for."""

    REQUEST = "the client sends the head of a request"
    BODY = "the client sends a body"
    TURN = "other requests come first"
    WORK = "the server works"
    ANSWER = "the client reads the answer"


@dataclass(eq=False, slots=True)
class TrackedConnection:
    """A connection in the table."""

    peer: str
    close: Callable[[], None]
    """Ends the connection at once; called from any thread."""
    deadline: float
    since: float
    phase: ConnectionPhase = ConnectionPhase.REQUEST
    is_known: bool = False
    """Whether a request on it had valid credentials."""
    client: str = field(init=False)
    """Whose connection it is: the peer, until a request names its user or, through a proxy, another
    address."""

    def __post_init__(self) -> None:
        self.client = self.peer


class ConnectionTable:
    """At most `most` connections, each with a time limit for what it waits for. `proxies` are peers
    that speak for many, so that they may have most connections."""

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        proxies: Collection[str] = (),
    ) -> None:
        self._most, self._clock, self._proxies = most, clock, proxies
        self._connections: set[TrackedConnection] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, peer: str, close: Callable[[], None], seconds: float) -> TrackedConnection | None:
        """A new connection, which has `seconds` for its request. If the table is full, another
        connection is closed; None if the server works for every one of them."""
        now = self._clock()
        connection = TrackedConnection(peer, close, now + seconds, now)
        with self._lock:
            victim = self._victim() if len(self._connections) >= self._most else None
            if victim:
                self._connections.discard(victim)
            elif len(self._connections) >= self._most:
                return None
            self._connections.add(connection)
        if victim:
            victim.close()
        return connection

    def enter(
        self, connection: TrackedConnection, phase: ConnectionPhase, seconds: float | None = None
    ) -> None:
        """The connection begins to wait for something else, for at most `seconds`."""
        now = self._clock()
        connection.phase, connection.since = phase, now
        connection.deadline = float("inf") if seconds is None else now + seconds

    def remove(self, connection: TrackedConnection) -> None:
        """The connection has ended."""
        with self._lock:
            self._connections.discard(connection)

    def close_expired(self) -> None:
        """Close the connections whose time is over; call it about once a second."""
        now = self._clock()
        with self._lock:
            expired = [each for each in self._connections if each.deadline <= now]
            self._connections.difference_update(expired)
        for connection in expired:
            connection.close()

    def _victim(self) -> TrackedConnection | None:
        """One of the client that has more than half of all connections; if there is none, strangers
        go first, then known clients between two requests, then others."""
        waiting = [each for each in self._connections if each.phase is not ConnectionPhase.WORK]
        if not waiting:
            return None
        counts = Counter(each.client for each in self._connections)
        client, count = counts.most_common(1)[0]
        if count > self._most / 2 and client not in self._proxies:
            waiting = [each for each in waiting if each.client == client] or waiting
        lowest = min(map(_rank, waiting))
        candidates = [each for each in waiting if _rank(each) == lowest]
        counts = Counter(each.client for each in candidates)
        most = max(counts.values())
        greedy = (each for each in candidates if counts[each.client] == most)
        return min(greedy, key=lambda each: each.since)


def _rank(connection: TrackedConnection) -> int:
    if not connection.is_known:
        return 0
    return 1 if connection.phase is ConnectionPhase.REQUEST else 2
