"""Expected starts. The view asks Slurm seldom: every `sbatch --test-only` makes it plan."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from cachetools import LRUCache

from carme.errors import CarmeError, UnavailableError
from carme.requests.placement import AT_ONCE_SECONDS
from carme.requests.resource_request import ResourceRequest
from carme.slurm.client import Client
from carme.slurm.models import ExpectedStart

PER_MINUTE = 6
_KEEP_SECONDS = 60.0
_MAX_ANSWERS = 500


class ExpectedStarts:
    """Slurm's answers per choice, kept for a minute; at most PER_MINUTE questions in all."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.asked = 0
        self._client = client
        self._clock = clock
        # No TTLCache: while Slurm must not be asked, an older answer is better than none.
        self._answers: LRUCache[ResourceRequest, tuple[float, ExpectedStart | CarmeError]] = (
            LRUCache(_MAX_ANSWERS)
        )
        self._asked_at: deque[float] = deque(maxlen=PER_MINUTE)
        self._lock = asyncio.Lock()

    async def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """Slurm's estimate, with its age in `asked_at`; raises Slurm's refusal as a typed error.

        Raises UnavailableError if Slurm is away, or must not be asked now and no answer is known.
        """
        # One question at a time: of two equal ones the second gets the first one's answer.
        async with self._lock:
            at, answer = self._answers.get(choice, (float("-inf"), None))
            age = self._clock() - at
            if answer is not None and _has_passed(answer, age):
                answer = None
            if answer is None or age > _KEEP_SECONDS:
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
        is_full = len(self._asked_at) == PER_MINUTE
        return not is_full or self._clock() - self._asked_at[0] >= 60

    async def _ask(self, choice: ResourceRequest) -> ExpectedStart | CarmeError:
        now = self._clock()
        self._asked_at.append(now)
        self.asked += 1
        answer: ExpectedStart | CarmeError
        try:
            answer = await asyncio.to_thread(self._client.expected_start, choice)
        except UnavailableError:
            raise
        except CarmeError as error:
            answer = error
        self._answers[choice] = (now, answer)
        return answer


def _has_passed(answer: ExpectedStart | CarmeError, age_seconds: float) -> bool:
    """Whether the job should have started already: "now" is soon wrong if somebody else starts."""
    if isinstance(answer, CarmeError):
        return False
    return age_seconds > max(0.0, answer.starts_at - answer.asked_at) + AT_ONCE_SECONDS
