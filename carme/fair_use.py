"""Fair use of what users share: how many calls of each user run and wait, and come in a minute."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from cachetools import LRUCache

from carme.errors import BusyError, UnavailableError

T = TypeVar("T")
_MAX_KEYS = 10_000
_HINT = "wait until one of them has ended, then try again"


class RateLimiter:
    """`per_minute` requests for each key, of which `burst` may come at once; half if unset."""

    def __init__(
        self,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        name: str = "requests",
        burst: int | None = None,
    ) -> None:
        self.name = name
        """What comes, in the plural, for messages."""
        self.label = f"{name} a minute"
        """For metrics."""
        self.refused = 0
        self._per_minute = per_minute
        self._rate = per_minute / 60
        self._size = max(per_minute / 2 if burst is None else burst, 1.0)
        self._clock = clock
        self._levels: LRUCache[str, tuple[float, float]] = LRUCache(_MAX_KEYS)
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """0 if the request may pass; else the seconds to wait."""
        now = self._clock()
        with self._lock:
            level, at = self._levels.get(key, (self._size, now))
            level = min(level + (now - at) * self._rate, self._size)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate
            self._levels[key] = (level - 1 if wait == 0 else level, now)
            self.refused += wait > 0
        return wait

    def check(self, user: str) -> None:
        """Count a request; BusyError if it comes too soon."""
        if wait := self.take(user):
            seconds = math.ceil(wait)
            raise BusyError(
                f"you send more than {self._per_minute} {self.name} a minute",
                f"try again in {seconds} s",
                retry_seconds=seconds,
            )


_AT_ONCE: Future[None] = Future()
"""Of all tickets that need not wait."""
_AT_ONCE.set_result(None)


class GateTicket:
    """One call at a gate: it waits until it may pass, and holds its place until it leaves."""

    def __init__(self, gate: FairGate, user: str, passed: Future[None] = _AT_ONCE) -> None:
        self.user, self.passed = user, passed
        self.has_left = False
        self._gate = gate

    def wait(self, seconds: float | None = None) -> None:
        """Block until the call may pass; UnavailableError if that takes too long."""
        try:
            self.passed.result(seconds)
        except TimeoutError:
            raise UnavailableError(
                f"too many {self._gate.name} are in progress", "try again in a moment"
            ) from None

    def leave(self) -> None:
        """Give the place to the next call; only the first time has an effect."""
        self._gate.leave(self)


class FairGate:
    """Lets `at_once` calls pass at a time, at most `per_user` of one user.

    Up to `waiting` further calls of each user wait, others are refused. Users take turns: however
    many calls of one user wait, the next user's call passes as soon as one call has ended. Threads
    and event loops may share a gate.
    """

    def __init__(
        self,
        name: str,
        at_once: int,
        per_user: int,
        waiting: int,
        hint: str = _HINT,
        label: str = "",
    ) -> None:
        self.name = name
        """What passes, in the plural, for messages."""
        self.label = label or name
        """For metrics."""
        self.refused = 0
        self._hint = hint
        self._at_once, self._per_user, self._waiting = at_once, per_user, waiting
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[GateTicket]] = OrderedDict()
        """Waiting calls by user; the user who passed last comes last."""
        self._lock = threading.Lock()

    def enter(self, user: str) -> GateTicket:
        """A call that passes, now or later; the caller must let it leave.

        Raises BusyError if the user has too many calls, and UnavailableError if nobody may wait
        and other users have all places.
        """
        with self._lock:
            is_full = self._held.total() >= self._at_once
            if not is_full and self._held[user] < self._per_user:
                self._held[user] += 1
                return GateTicket(self, user)
            queue = self._queues.get(user, ())
            if len(queue) < self._waiting:
                passed: Future[None] = Future()
                passed.set_running_or_notify_cancel()  # a caller that gives up leaves instead
                ticket = GateTicket(self, user, passed)
                self._queues.setdefault(user, deque()).append(ticket)
                return ticket
            self.refused += 1
            own = self._held[user] + len(queue)
            if not own:
                raise UnavailableError(
                    f"too many {self.name} of other users are in progress", self._hint
                )
        raise BusyError(f"you already have {own} {self.name} in progress", self._hint)

    def leave(self, ticket: GateTicket) -> None:
        """End a call, or its wait; the next calls pass."""
        with self._lock:
            if ticket.has_left:
                return
            ticket.has_left = True
            user = ticket.user
            if ticket.passed.done():
                self._held[user] -= 1
                if not self._held[user]:
                    del self._held[user]
            else:
                self._queues[user].remove(ticket)
                if not self._queues[user]:
                    del self._queues[user]
            while next_ticket := self._next():
                next_ticket.passed.set_result(None)

    def _next(self) -> GateTicket | None:
        """The next call that may pass, counted as passed; None if there is none."""
        if self._held.total() >= self._at_once:
            return None
        for user, queue in self._queues.items():
            if self._held[user] < self._per_user:
                ticket = queue.popleft()
                self._queues.move_to_end(user)
                if not queue:
                    del self._queues[user]
                self._held[user] += 1
                return ticket
        return None

    @contextmanager
    def turn(self, user: str, seconds: float | None = None) -> Iterator[None]:
        """Wait for a place, at most `seconds`, and hold it for the duration of the context."""
        ticket = self.enter(user)
        try:
            ticket.wait(seconds)
            yield
        finally:
            ticket.leave()

    @asynccontextmanager
    async def async_turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a place and hold it for the duration of the context, in an event loop."""
        ticket = self.enter(user)
        try:
            if not ticket.passed.done():
                await asyncio.wrap_future(ticket.passed)
            yield
        finally:
            ticket.leave()

    def call(
        self,
        user: str,
        submit: Callable[..., Future[Any]],
        function: Callable[..., T],
        *arguments: object,
        seconds: float,
    ) -> T:
        """The result of `function`, which `submit` gives to an executor when the call may pass.

        Raises UnavailableError if it does not pass within `seconds`, and TimeoutError if there is
        no result then. It holds its place until the function has ended.
        """
        end = time.monotonic() + seconds
        ticket = self.enter(user)
        try:
            ticket.wait(seconds)
            call = submit(function, *arguments)
        except BaseException:
            ticket.leave()
            raise
        call.add_done_callback(lambda _: ticket.leave())
        try:
            result: T = call.result(max(0.0, end - time.monotonic()))
            return result
        finally:
            call.cancel()  # if it has not begun

    async def run(self, user: str, threads: Executor, function: Callable[[], T]) -> T:
        """The result of `function`, called in one of `threads` when the call may pass.

        It holds its place until the function has ended, also if the caller is cancelled before.
        """
        ticket = self.enter(user)
        try:
            if not ticket.passed.done():
                await asyncio.wrap_future(ticket.passed)
            call = threads.submit(function)
        except BaseException:
            ticket.leave()
            raise
        call.add_done_callback(lambda _: ticket.leave())
        return await asyncio.wrap_future(call)


def refusals(*limits: FairGate | RateLimiter) -> Counter[str]:
    """How many calls the limits have refused, by their labels."""
    refused: Counter[str] = Counter()
    for limit in limits:
        refused[limit.label] += limit.refused
    return refused
