"""Jobs of the accounting database, asked of it one question at a time and kept for a while."""

import asyncio
import time
from collections.abc import Callable

from carme.errors import InputError
from carme.slurm.client import Client
from carme.slurm.models import History

_KEEP_SECONDS = 30.0
_MAX_KEPT = 20
_MAX_SPAN_SECONDS = 32 * 86400
_STEP_SECONDS = 60


class HistoryCache:
    """History for the view: the same span asked twice within half a minute is asked once."""

    def __init__(self, client: Client, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._now = now
        self._known: dict[tuple[int, int, str], tuple[float, History]] = {}
        self._lock = asyncio.Lock()

    async def history(self, since: int, until: int | None, user: str) -> History:
        """Jobs between two moments, of everybody for an empty `user`; a month at most."""
        end = until or int(self._now()) // _STEP_SECONDS * _STEP_SECONDS + _STEP_SECONDS
        if not 0 < end - since <= _MAX_SPAN_SECONDS:
            raise InputError("history is given for 32 days at most", "ask for a shorter time")
        key = (since, end, user)
        async with self._lock:
            at, found = self._known.get(key, (float("-inf"), None))
            if found is None or self._now() - at > _KEEP_SECONDS:
                users = (user,) if user else ()
                jobs = await asyncio.to_thread(self._client.history, since, end, users)
                found = History(jobs=tuple(job for job in jobs if not user or job.user == user))
                if len(self._known) >= _MAX_KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = (self._now(), found)
        return found
