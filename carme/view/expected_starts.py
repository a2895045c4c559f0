"""Expected starts, asked of Slurm seldom: each question makes its scheduler plan."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from carme.errors import CarmeError, UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.client import Client
from carme.slurm.models import ExpectedStart

PER_MINUTE = 6
_KEEP_SECONDS = 60.0
_MAX_KEPT = 500


class ExpectedStarts:
    """Answers per choice, kept for a minute; at most PER_MINUTE questions in all."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.asked = 0
        self._client = client
        self._clock = clock
        self._known: dict[ResourceRequest, tuple[float, ExpectedStart | CarmeError]] = {}
        self._recent: deque[float] = deque()
        self._lock = asyncio.Lock()

    async def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """Slurm's guess, its `asked_at` saying how old it is; its refusal as the typed error."""
        # One question at a time: the same choice asked twice at once finds the first's answer.
        async with self._lock:
            at, answer = self._known.get(choice, (float("-inf"), None))
            if self._clock() - at > _KEEP_SECONDS or answer is None:
                if self._may_ask():
                    answer = await self._ask(choice)
                elif answer is None:
                    raise UnavailableError(
                        f"Slurm was asked {PER_MINUTE} times within a minute", "try again shortly"
                    )
        if isinstance(answer, CarmeError):
            raise type(answer)(answer.message, answer.hint)
        return answer

    def _may_ask(self) -> bool:
        now = self._clock()
        while self._recent and now - self._recent[0] >= 60:
            self._recent.popleft()
        return len(self._recent) < PER_MINUTE

    async def _ask(self, choice: ResourceRequest) -> ExpectedStart | CarmeError:
        now = self._clock()
        self._recent.append(now)
        self.asked += 1
        answer: ExpectedStart | CarmeError
        try:
            answer = await asyncio.to_thread(self._client.expected_start, choice)
        except UnavailableError:
            raise
        except CarmeError as error:
            answer = error
        if len(self._known) >= _MAX_KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[choice] = (now, answer)
        return answer
