"""Sessions that hold GPUs and do nothing: told, warned, and in the end ended.

What the GPUs did comes from the exporters, through `carme-view`; what the kernels do, only the
session's own server knows. A session is never ended on a guess: without both answers it goes on.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tornado.httpclient import AsyncHTTPClient
from traitlets.log import get_logger

from carme.config import SessionSettings
from carme.errors import CarmeError
from carme.jobs.models import Idleness
from carme.slurm.models import Job
from carme.units import format_duration
from carme.view.client import AsyncViewClient

LOOK_SECONDS = 30
"""How old the figures of all sessions may be at most: there are new ones every 15 s."""
_FORGET_SECONDS = 600
_BUSY_RATIO = 0.01
"""Below this part of its time a GPU did nothing; the exporter counts likewise."""
_BUSY_CORES = 0.1
"""An idle JupyterLab needs a hundredth of a core; ten times that is somebody's program."""

Verdict = Literal["active", "working", "idle"]


@dataclass(frozen=True)
class SessionActivity:
    """What a session's server says of its kernels and terminals."""

    is_busy: bool
    """A kernel is running code."""
    last: float
    """When one of them last did anything; 0 if there are none."""


def read_activity(kernels: Any, terminals: Any) -> SessionActivity:
    """The answers of /api/kernels and /api/terminals."""
    moments = [
        datetime.fromisoformat(str(entry["last_activity"]).replace("Z", "+00:00")).timestamp()
        for entry in (*kernels, *terminals)
        if entry.get("last_activity")
    ]
    # "starting", "restarting" and words to come: only an idle or dead kernel does nothing.
    busy = any(kernel.get("execution_state") not in ("idle", "dead", None) for kernel in kernels)
    return SessionActivity(busy, max(moments, default=0.0))


def judge(gpus: Idleness, activity: SessionActivity, since: float) -> Verdict:
    """active: it uses its GPUs or its user does; working: it works, but not on its GPUs."""
    if gpus.gpu_busy_ratio >= _BUSY_RATIO:
        return "active"
    if activity.is_busy or gpus.cpu_cores >= _BUSY_CORES:
        return "working"
    return "active" if activity.last > since else "idle"


class IdlePolicy:
    """The state of one session: what its user is told, and when it is over."""

    def __init__(self, settings: SessionSettings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._ends_at: float | None = None
        self.warning = ""
        """What the user is told; empty while all is well."""
        self.over = ""
        """Why the session was ended, in words for its user."""

    @property
    def window_seconds(self) -> float:
        """How long GPUs and kernels must have done nothing."""
        return self._settings.gpu_idle_hours * 3600

    async def look(
        self, figures: "GpuIdleness", job: Job, url: str, token: Callable[[], str]
    ) -> bool:
        """Look at what the session behind `url` does; True when its time is over."""
        seconds = self.window_seconds
        gpus = await figures.of(job.id, seconds) if seconds and job.gpu_count else None
        if gpus is None:
            return False
        try:
            activity = await ask_server(url, token())
        except (OSError, ValueError, KeyError) as error:
            get_logger().warning("Job %s: its server does not say what it does: %s", job.id, error)
            return False
        before = self.warning
        over = self.take(judge(gpus, activity, self._now() - seconds), job.gpu_count)
        if self.warning != before:
            get_logger().info("Job %s: %s", job.id, self.warning or "uses its GPUs again")
        return over

    def take(self, verdict: Verdict, gpus: int) -> bool:
        """Take note of what the session does; True when its time is over."""
        names = "its GPU" if gpus == 1 else f"its {gpus} GPUs"
        idle = format_duration(self.window_seconds)
        now = self._now()
        if verdict == "idle":
            notice = self._settings.gpu_idle_notice_minutes * 60
            self._ends_at = self._ends_at or now + notice
            if now >= self._ends_at:
                self.over = f"It did nothing with {names} for more than {idle}, so it was ended."
                return True
            at = time.strftime("%H:%M", time.localtime(self._ends_at))
            self.warning = (
                f"This session did nothing with {names} for {idle}. It ends at {at} unless you"
                " run something."
            )
            return False
        self._ends_at = None
        self.warning = (
            f"This session works, but not with {names}, which did nothing for {idle}. Others may"
            " be waiting for them."
            if verdict == "working"
            else ""
        )
        return False


class GpuIdleness:
    """What the GPUs of all sessions did, asked of the view once for all of them."""

    def __init__(self, client: AsyncViewClient, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self._wanted: dict[int, float] = {}
        self._found: Mapping[int, Idleness] = {}
        self._asked = float("-inf")

    async def of(self, job_id: int, seconds: float) -> Idleness | None:
        """Of this job; None while nobody knows, and at the first question about it."""
        now = self._now()
        self._wanted[job_id] = now
        if now - self._asked >= min(LOOK_SECONDS, seconds / 4):
            self._asked = now
            self._wanted = {k: at for k, at in self._wanted.items() if now - at < _FORGET_SECONDS}
            try:
                self._found = await self._client.idle(self._wanted, seconds)
            except CarmeError as error:
                get_logger().warning("Nobody knows which sessions are idle: %s", error)
                self._found = {}
        return self._found.get(job_id)


async def ask_server(url: str, token: str) -> SessionActivity:
    """What the server at `url` (with its base path) says; OSError or ValueError if it does not."""
    answers = []
    for what in ("kernels", "terminals"):
        try:
            reply = await AsyncHTTPClient().fetch(
                f"{url}api/{what}",
                headers={"Authorization": f"token {token}"},
                request_timeout=10,
                raise_error=False,
            )
        except Exception as error:  # tornado has many, and none of them ends a session
            raise OSError(str(error)) from error
        # Terminals can be switched off.
        if reply.code == 404 and what == "terminals":
            answers.append([])
        elif reply.code != 200:
            raise OSError(f"api/{what} answers {reply.code}")
        else:
            answers.append(json.loads(reply.body))
    return read_activity(*answers)
