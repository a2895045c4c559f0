"""Sessions that do not use their GPUs are warned and then ended.

The use of GPUs comes from the exporters, through `carme-view`; the activity of kernels from the
session itself. Without both answers a session goes on.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from aiohttp import ClientError, ClientTimeout
from jupyterhub.httpclient import fetch
from pydantic import AwareDatetime, BaseModel, FailFast, TypeAdapter, ValidationError
from traitlets.log import get_logger

from carme.config import SessionSettings
from carme.errors import CarmeError
from carme.jobs.models import Idleness
from carme.slurm.models import Job
from carme.units import format_duration
from carme.validation import explain_first
from carme.view.client import AsyncViewClient
from carme_spawner.cluster_state import IDLE_MAX_AGE_SECONDS

_ANSWER_SECONDS = 10
_ANSWER_BYTES = 1_000_000
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


class _Program(BaseModel):
    """A kernel or terminal in the answer of Jupyter."""

    last_activity: AwareDatetime | None = None
    execution_state: str | None = None


_PROGRAMS = TypeAdapter(Annotated[list[_Program], FailFast()])


def read_activity(kernels: bytes, terminals: bytes) -> SessionActivity:
    """The activity in the answers of /api/kernels and /api/terminals.

    Raises ValueError if they are not what Jupyter answers: a user's program may have written them.
    """
    try:
        programs = _PROGRAMS.validate_json(kernels), _PROGRAMS.validate_json(terminals)
    except ValidationError as error:
        problem = explain_first(error, root="answer")
        raise ValueError(f"Jupyter answers otherwise: {problem}") from None
    moments = [
        program.last_activity.timestamp()
        for group in programs
        for program in group
        if program.last_activity
    ]
    # "starting", "restarting" and unknown states count as busy.
    busy = any(kernel.execution_state not in ("idle", "dead", None) for kernel in programs[0])
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
        except (OSError, ValueError) as error:
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
    contents: list[bytes] = []
    for resource in ("kernels", "terminals"):
        try:
            response = await fetch(
                f"{url}api/{resource}",
                headers={"Authorization": f"token {token}", "Accept-Encoding": "identity"},
                auto_decompress=False,
                timeout=ClientTimeout(total=_ANSWER_SECONDS),
                allow_redirects=False,
                raise_for_status=False,
            )
            async with response:
                body = b""
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _ANSWER_BYTES:
                        raise OSError(f"api/{resource} answers more than {_ANSWER_BYTES} bytes")
        except (ClientError, TimeoutError) as error:
            raise OSError(f"api/{resource}: {error!r}") from error
        # Terminals can be switched off.
        if response.status == 404 and resource == "terminals":
            contents.append(b"[]")
        elif response.status != 200:
            raise OSError(f"api/{resource} answers {response.status}")
        else:
            contents.append(body)
    return read_activity(*contents)
