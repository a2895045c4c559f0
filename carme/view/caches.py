"""Caches for slow answers: of Slurm its expected starts, history and rights; of the directory
service names and groups."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from cachetools import LRUCache, TTLCache

from carme.errors import BusyError, CarmeError, InputError, UnavailableError
from carme.fair_use import FairGate, RateLimiter
from carme.requests.placement import AT_ONCE_SECONDS
from carme.requests.resource_request import ResourceRequest
from carme.slurm.client import SlurmClient
from carme.slurm.models import ExpectedStart, History
from carme.slurm.rights import Rights, UserRights

log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

_EXPECTED_START_SECONDS = 60.0
_MAX_EXPECTED_START_SECONDS = 300.0
"""The greatest age of an answer that is given while Slurm must not be asked."""
_MAX_EXPECTED_STARTS = 500
_WAITING = 8
"""Questions of one user that wait while another of theirs is answered."""

_HISTORY_SECONDS = 30.0
_MAX_HISTORIES = 20
_HISTORIES_AT_ONCE = 2
"""Questions to slurmdbd at the same time, each of another user: nobody waits for one user's."""
_MAX_HISTORY_SPAN_SECONDS = 32 * 86400
_HISTORY_STEP_SECONDS = 60

_MAX_LOOKUPS = 10_000
_EMPTY_SECONDS = 15.0

_RIGHTS_RETRY_SECONDS = 15.0
"""Time between two reads while slurmdbd is away, or for users who are not in the last reading."""
_RIGHTS_WAIT_SECONDS = 1.0
"""How long a request waits for a newer reading when there is an older one."""
_FIRST_RIGHTS_WAIT_SECONDS = 8.0


class ExpectedStarts:
    """Slurm's expected starts, kept for a minute per request; longer if Slurm must not be asked.

    Every `sbatch --test-only` makes Slurm plan, so the view runs at most `per_minute` of them, and
    `per_user` for each user.
    """

    def __init__(
        self,
        client: SlurmClient,
        per_minute: int,
        per_user: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked = 0
        name = "questions for an expected start"
        self.gate = FairGate(name, 1, 1, _WAITING)
        self.user_rates = RateLimiter(per_user, clock, name, burst=per_user)
        self.total_rate = RateLimiter(per_minute, clock, f"{name} of all users", burst=per_minute)
        self._client = client
        self._per_minute, self._per_user = per_minute, per_user
        self._clock = clock
        # No TTLCache: while Slurm must not be asked, an older answer is better than none.
        self._answers: LRUCache[ResourceRequest, tuple[float, ExpectedStart | CarmeError]] = (
            LRUCache(_MAX_EXPECTED_STARTS)
        )

    async def expected_start(self, resources: ResourceRequest, user: str) -> ExpectedStart:
        """Slurm's estimate, with its time in `asked_at`; raises Slurm's refusal as a typed error.

        Raises UnavailableError if Slurm is away, or must not be asked now and no answer is cached.
        """
        answer = self._cached(resources, _EXPECTED_START_SECONDS)
        if answer is None:
            # One query at a time: the second of two equal ones gets the first one's answer.
            async with self.gate.async_turn(user):
                answer = self._cached(resources, _EXPECTED_START_SECONDS)
                refusal = None if answer else self._refusal(user)
                if answer is None and refusal is None:
                    answer = await self._ask(resources)
            answer = answer or self._cached(resources, _MAX_EXPECTED_START_SECONDS) or refusal
        if answer is None:
            raise UnavailableError("Slurm does not say when such a job would start")
        if isinstance(answer, CarmeError):
            raise type(answer)(answer.message, answer.hint)
        return answer

    def _cached(
        self, resources: ResourceRequest, max_age_seconds: float
    ) -> ExpectedStart | CarmeError | None:
        asked_at, answer = self._answers.get(resources, (float("-inf"), None))
        age = self._clock() - asked_at
        if answer is None or age > max_age_seconds or _has_passed(answer, age):
            return None
        return answer

    def _refusal(self, user: str) -> UnavailableError | None:
        """Why Slurm must not be asked for this user now; else the question counts."""
        if wait := self.user_rates.take(user):
            times = f"{self._per_user} times within a minute"
            seconds = math.ceil(wait)
            return BusyError(f"Slurm was asked for you {times}", "try again shortly", seconds)
        if self.total_rate.take(""):
            times = f"{self._per_minute} times within a minute"
            return UnavailableError(f"Slurm was asked {times}", "try again shortly")
        return None

    async def _ask(self, resources: ResourceRequest) -> ExpectedStart | CarmeError:
        now = self._clock()
        self.asked += 1
        answer: ExpectedStart | CarmeError
        try:
            answer = await asyncio.to_thread(
                self._client.expected_start, resources.sbatch_options()
            )
        except UnavailableError:
            raise
        except CarmeError as error:
            answer = error
        self._answers[resources] = (now, answer)
        return answer


def _has_passed(answer: ExpectedStart | CarmeError, age_seconds: float) -> bool:
    """Whether the job should have started already: "now" is soon wrong if somebody else starts."""
    if isinstance(answer, CarmeError):
        return False
    return age_seconds > max(0.0, answer.starts_at - answer.asked_at) + AT_ONCE_SECONDS


class HistoryCache:
    """Jobs of the accounting database: slurmdbd is asked once per span, user and half a minute."""

    def __init__(self, client: SlurmClient, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._now = now
        self._histories: TTLCache[tuple[int, int, str], History] = TTLCache(
            _MAX_HISTORIES, _HISTORY_SECONDS, now
        )
        self._readings: dict[tuple[int, int, str], asyncio.Future[History]] = {}
        self.gate = FairGate("questions about past jobs", _HISTORIES_AT_ONCE, 1, _WAITING)

    async def history(self, since: int, until: int | None, user: str, asker: str) -> History:
        """Jobs between two times, of all users if `user` is empty; 32 days at most.

        Raises BusyError if `asker`, for whom this is, has too many questions open.
        """
        # Rounded up, so that callers within the same minute share an answer.
        step = _HISTORY_STEP_SECONDS
        end = until or int(self._now()) // step * step + step
        if not 0 < end - since <= _MAX_HISTORY_SPAN_SECONDS:
            raise InputError("a history covers 32 days at most", "ask for a shorter time")
        key = (since, end, user)
        if (history := self._histories.get(key)) is not None:
            return history
        async with self.gate.async_turn(asker):
            if (history := self._histories.get(key)) is not None:
                return history
            # The second of two equal questions gets the first one's answer.
            if key not in self._readings:
                self._readings[key] = asyncio.ensure_future(self._read(key))
            return await asyncio.shield(self._readings[key])

    async def _read(self, key: tuple[int, int, str]) -> History:
        since, until, user = key
        try:
            users = (user,) if user else ()
            jobs = await asyncio.to_thread(self._client.history, since, until, users)
        finally:
            del self._readings[key]
        history = History(jobs=tuple(job for job in jobs if not user or job.user == user))
        self._histories[key] = history
        return history


class LookupCache(Generic[K, V]):
    """Answers of the directory service, which may be slow: each is looked up once at a time, and
    cached for `seconds`; an empty one for 15 seconds."""

    def __init__(self, look_up: Callable[[K], V], seconds: float, threads: Executor) -> None:
        self._look_up, self._threads = look_up, threads
        self._answers: TTLCache[K, V] = TTLCache(_MAX_LOOKUPS, seconds)
        self._empty: TTLCache[K, V] = TTLCache(_MAX_LOOKUPS, min(_EMPTY_SECONDS, seconds))
        self._running: dict[K, asyncio.Future[V]] = {}

    def known(self, key: K) -> V | None:
        """The cached answer; None if it has to be looked up."""
        answer = self._answers.get(key)
        return self._empty.get(key) if answer is None else answer

    async def of(self, key: K) -> V:
        """The answer, looked up if it is not cached."""
        answer = self.known(key)
        if answer is not None:
            return answer
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(self._read(key))
        return await asyncio.shield(self._running[key])

    async def _read(self, key: K) -> V:
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._look_up, key)
        finally:
            del self._running[key]
        (self._answers if answer else self._empty)[key] = answer
        return answer


class RightsCache:
    """The rights of all users, because slurmdbd is slow and may be away.

    They are read again after `keep_seconds`, or sooner for a user who is not in the last reading.
    """

    def __init__(
        self, client: SlurmClient, keep_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.reads = 0
        self._client = client
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._rights: Rights | None = None
        self._error: CarmeError | None = None
        self._taken_at = 0.0
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def of(self, user: str, max_age_seconds: float | None = None) -> UserRights:
        """The user's rights; UnavailableError only if there is no reading at all.

        With `max_age_seconds` no older than that if slurmdbd answers, but never read again within
        15 seconds.
        """
        keep = self._keep_seconds if max_age_seconds is None else max_age_seconds
        if self._is_due(user, keep):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            is_first = self._rights is None
            wait = _FIRST_RIGHTS_WAIT_SECONDS if is_first else _RIGHTS_WAIT_SECONDS
            # A read that takes longer goes on, for the next request.
            await asyncio.wait({self._reading}, timeout=wait)
        if self._rights is None:
            raise self._error or UnavailableError("accounts and QoS have not been read yet")
        error = self._error.message if self._error else ""
        return self._rights.of(user, self._taken_at, error)

    def _is_due(self, user: str, keep_seconds: float) -> bool:
        now = self._clock()
        if now - self._tried_at < _RIGHTS_RETRY_SECONDS and (self._rights or self._error):
            return False
        if self._rights is None or self._error:
            return True
        return now - self._read_at >= keep_seconds or not self._rights.has_account(user)

    async def _read(self) -> None:
        began = self._tried_at = self._clock()
        taken_at = time.time()
        self.reads += 1
        try:
            self._rights = await asyncio.to_thread(self._client.rights)
        except CarmeError as error:
            if not self._error:
                log.warning("accounts and QoS cannot be read: %s", error)
            self._error = error
        except Exception as error:
            log.exception("reading accounts and QoS failed")
            self._error = UnavailableError(f"reading failed: {type(error).__name__}")
        else:
            self._taken_at, self._read_at, self._error = taken_at, began, None
