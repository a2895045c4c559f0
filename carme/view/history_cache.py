"""Jobs of the accounting database, asked of it one question at a time and kept for a while."""

import asyncio
import time
from collections.abc import Callable

from cachetools import TTLCache

from carme.errors import InputError
from carme.slurm.client import Client
from carme.slurm.models import History

_KEEP_SECONDS = 30.0
_MAX_ANSWERS = 20
_MAX_SPAN_SECONDS = 32 * 86400
_STEP_SECONDS = 60


class HistoryCache:
    """History for the view: slurmdbd is asked once per span, user and half a minute."""

    def __init__(self, client: Client, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._now = now
        self._answers: TTLCache[tuple[int, int, str], History] = TTLCache(
            _MAX_ANSWERS, _KEEP_SECONDS, now
        )
        self._lock = asyncio.Lock()

    async def history(self, since: int, until: int | None, user: str) -> History:
        """Jobs between two moments, of all users if `user` is empty; 32 days at most."""
        # Rounded up, so that callers within the same minute share an answer.
        end = until or int(self._now()) // _STEP_SECONDS * _STEP_SECONDS + _STEP_SECONDS
        if not 0 < end - since <= _MAX_SPAN_SECONDS:
            raise InputError("history is given for 32 days at most", "ask for a shorter time")
        key = (since, end, user)
        async with self._lock:
            history = self._answers.get(key)
            if history is None:
                users = (user,) if user else ()
                jobs = await asyncio.to_thread(self._client.history, since, end, users)
                history = History(jobs=tuple(job for job in jobs if not user or job.user == user))
                self._answers[key] = history
        return history
