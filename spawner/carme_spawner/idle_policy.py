"""Sessions that do not use their GPUs are warned and then ended.

The use of GPUs comes from the exporters, through `carme-view`; the activity of kernels from the
session itself. Without both answers a session goes on.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from aiohttp import ClientError, ClientTimeout
from jupyterhub.httpclient import fetch
from traitlets.log import get_logger

from carme.config import SessionSettings
from carme.errors import CarmeError
from carme.jobs.models import Idleness
from carme.slurm.models import Job
from carme.units import format_duration
from carme.view.client import AsyncViewClient
from carme_spawner.cluster_state import IDLE_MAX_AGE_SECONDS

_ANSWER_SECONDS = 10
_FORGET_SECONDS = 600
_BUSY_RATIO = 0.01
"""A GPU that was busy for a smaller part of the time is idle; the exporter has the same rule."""
_BUSY_CORES = 0.1
"""An idle JupyterLab needs a hundredth of a core; ten times that is a program."""

Verdict = Literal["active", "working", "idle"]


@dataclass(frozen=True)
class SessionActivity:
    """The activity of a session's kernels and terminals."""

    is_busy: bool
    """A kernel is running code."""
    last: float
    """The last activity in Unix seconds; 0 if there are no kernels and terminals."""


def read_activity(kernels: Any, terminals: Any) -> SessionActivity:
    """The activity in the answers of /api/kernels and /api/terminals."""
    moments = [
        datetime.fromisoformat(str(entry["last_activity"]).replace("Z", "+00:00")).timestamp()
        for entry in (*kernels, *terminals)
        if entry.get("last_activity")
    ]
    # "starting", "restarting" and unknown states count as busy.
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
    """The warning of one session, and the decision to end it."""

    def __init__(self, settings: SessionSettings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._ends_at: float | None = None
        self.warning = ""
        """The warning for the user; empty without one."""
        self.end_reason = ""
        """Why the session was ended; empty until then."""

    @property
    def window_seconds(self) -> float:
        """How long GPUs and kernels must have been idle."""
        return self._settings.gpu_idle_hours * 3600

    async def check(
        self, figures: "GpuIdleness", job: Job, url: str, token: Callable[[], str]
    ) -> bool:
        """Read the activity of the session at `url`; True if it must end."""
        seconds = self.window_seconds
        gpus = await figures.of(job.id, seconds) if seconds and job.gpu_count else None
        if gpus is None:
            return False
        try:
            activity = await read_session(url, token())
        except (OSError, ValueError, KeyError) as error:
            get_logger().warning(
                "Job %s: the activity of its session cannot be read: %s", job.id, error
            )
            return False
        before = self.warning
        must_end = self.apply(judge(gpus, activity, self._now() - seconds), job.gpu_count)
        if self.warning != before:
            get_logger().info("Job %s: %s", job.id, self.warning or "uses its GPUs again")
        return must_end

    def apply(self, verdict: Verdict, gpus: int) -> bool:
        """Set the warning by the verdict; True if the session must end."""
        names = "its GPU" if gpus == 1 else f"its {gpus} GPUs"
        idle = format_duration(self.window_seconds)
        now = self._now()
        if verdict == "idle":
            notice = self._settings.gpu_idle_notice_minutes * 60
            self._ends_at = self._ends_at or now + notice
            if now >= self._ends_at:
                self.end_reason = (
                    f"It did nothing with {names} for more than {idle}, so it was ended."
                )
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
    """The use of the GPUs of all sessions, read from the view once for all of them."""

    def __init__(self, client: AsyncViewClient, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self._job_ids: dict[int, float] = {}
        self._idleness: Mapping[int, Idleness] = {}
        self._asked = float("-inf")

    async def of(self, job_id: int, seconds: float) -> Idleness | None:
        """The GPU use of this job; None while it is not known, as at the first question."""
        now = self._now()
        self._job_ids[job_id] = now
        if now - self._asked >= min(IDLE_MAX_AGE_SECONDS, seconds / 4):
            self._asked = now
            self._job_ids = {k: at for k, at in self._job_ids.items() if now - at < _FORGET_SECONDS}
            try:
                self._idleness = await self._client.idle(self._job_ids, seconds)
            except CarmeError as error:
                get_logger().warning("The use of GPUs cannot be read: %s", error)
                self._idleness = {}
        return self._idleness.get(job_id)


async def read_session(url: str, token: str) -> SessionActivity:
    """The activity of the session at `url` (with its base path); raises OSError or ValueError
    without an answer.

    JupyterHub's client sends the token only to a server with the session's certificate.
    """
    contents: list[list[dict[str, Any]]] = []
    for resource in ("kernels", "terminals"):
        try:
            response = await fetch(
                f"{url}api/{resource}",
                headers={"Authorization": f"token {token}"},
                timeout=ClientTimeout(total=_ANSWER_SECONDS),
                allow_redirects=False,
                raise_for_status=False,
            )
            async with response:
                body = await response.read()
        except (ClientError, TimeoutError) as error:
            raise OSError(f"api/{resource}: {error!r}") from error
        # Terminals can be switched off.
        if response.status == 404 and resource == "terminals":
            contents.append([])
        elif response.status != 200:
            raise OSError(f"api/{resource} answers {response.status}")
        else:
            contents.append(json.loads(body))
    return read_activity(*contents)
