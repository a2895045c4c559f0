"""The hub's side of `carme-helper`: one coroutine a verb, each run as the user through sudo."""

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from carme.errors import (
    CarmeError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
    error_from_json,
)
from carme.fair_use import FairGate
from carme.helper.models import (
    LOG_FILE,
    VERBS,
    ExtendReply,
    HelperReply,
    ImageReply,
    SubmitReply,
    TailReply,
)
from carme.system.programs import CommandResult, execute
from carme.validation import explain_first

log = logging.getLogger(__name__)
Reply = TypeVar("Reply", bound=HelperReply)
_MAX_ANSWER_BYTES = 2**20
_AT_ONCE = 8
"""Helpers of one kind that run at the same time; one takes 0.3 s, and fifty would slow each other
down."""
_WAITING = 16
"""Further calls of a user that wait. A user's sessions need fewer when all start or end at once."""
_EXTENSIONS_WAITING = 4
"""Further extensions of a user that wait: somebody clicks a few times."""


@dataclass(frozen=True)
class HelperClient:
    """Runs the helper at `helper` with the configuration `config_path` as the user of each call.

    A user has `per_user` helpers of a kind at a time; further calls wait, and users take turns.
    Raises BusyError to a user with too many calls.
    """

    helper: Path
    config_path: Path
    sudo: Sequence[str] = ("sudo", "-n")
    timeout_seconds: float = 75
    per_user: int = 3
    jobs: FairGate = field(init=False)
    images: FairGate = field(init=False)
    """A slow image delays no submission."""
    extensions: FairGate = field(init=False)
    """The view makes one at a time, so that they wait there; they delay no submission either."""
    _threads: ThreadPoolExecutor = field(
        init=False, default_factory=partial(ThreadPoolExecutor, 3 * _AT_ONCE, "carme-helper")
    )

    def __post_init__(self) -> None:
        for name, gate in (
            ("jobs", FairGate("changes of jobs", _AT_ONCE, self.per_user, _WAITING)),
            ("images", FairGate("checks of images", _AT_ONCE, self.per_user, _WAITING)),
            ("extensions", FairGate("extensions", _AT_ONCE, 1, _EXTENSIONS_WAITING)),
        ):
            object.__setattr__(self, name, gate)  # the usual way in a frozen dataclass

    async def submit(
        self,
        user: str,
        name: str,
        script: str,
        files: Mapping[str, str] | None = None,
        in_use: Sequence[str] = (),
    ) -> SubmitReply:
        """Write a session's files and submit its script; returns the job's id and folder.

        Also removes old folders of other sessions, except those `in_use`.
        """
        fields = {"name": name, "script": script, "files": dict(files or {}), "in_use": in_use}
        return await self._run(user, "submit", SubmitReply, **fields)

    async def cancel(self, user: str, job_id: int) -> None:
        """End a job; no error if it has ended already."""
        await self._run(user, "cancel", HelperReply, job_id=job_id)

    async def signal(self, user: str, job_id: int, signal: str) -> None:
        """Send TERM, INT, HUP, USR1, USR2, STOP or CONT to a job's script, which passes it on."""
        await self._run(user, "signal", HelperReply, job_id=job_id, signal=signal)

    async def extend(self, user: str, job_id: int, seconds: int) -> ExtendReply:
        """Extend a job's time limit, within what the site and the partition allow."""
        return await self._run(user, "extend", ExtendReply, job_id=job_id, seconds=seconds)

    async def tail_log(self, user: str, name: str, lines: int = 50, file: str = LOG_FILE) -> str:
        """The last lines of a session's log."""
        fields = {"name": name, "file": file, "lines": lines}
        return (await self._run(user, "tail-log", TailReply, **fields)).text

    async def check_image(self, user: str, path: str) -> ImageReply:
        """An image that the user can read; a typed error says why not."""
        return await self._run(user, "check-image", ImageReply, path=path)

    async def _run(self, user: str, verb: str, reply: type[Reply], **fields: object) -> Reply:
        try:
            request = VERBS[verb].model_validate(fields)
        except ValidationError as error:
            raise InputError(explain_first(error)) from None
        # `-u=` and `--` keep a user name that looks like an option from being one.
        argv = [*self.sudo, f"--user={user}", "--", str(self.helper)]
        argv += ["--config", str(self.config_path), verb]
        # In a thread: starting a program can take a second on a busy host, and must not block the
        # hub's event loop.
        run = partial(
            execute,
            argv,
            stdin=request.model_dump_json(),
            timeout_seconds=self.timeout_seconds,
            cwd="/",
            max_output_bytes=_MAX_ANSWER_BYTES,  # the helper runs as the user, who may replace it
        )
        gate = {"check-image": self.images, "extend": self.extensions}.get(verb, self.jobs)
        done = await gate.run(user, self._threads, run)
        try:
            value = json.loads(done.stdout)
        except (ValueError, RecursionError):
            raise self._sudo_failure(user, done) from None
        if failure := error_from_json(value):
            raise failure
        try:
            return reply.model_validate(value)
        except ValidationError:
            raise UnavailableError(f"the helper's answer to {verb} cannot be read") from None

    @staticmethod
    def _sudo_failure(user: str, done: CommandResult) -> CarmeError:
        code, printed = done.returncode, done.stderr.strip()
        log.warning("the helper for %s ended with %d: %s", user, code, printed[-2000:])
        if "password is required" in printed or "not allowed" in printed:
            return DeniedError(
                f"sudo does not let the hub act for {user}",
                "is the user in the users group, and the sudo rule in place?",
            )
        if "command not found" in printed or "unknown user" in printed:
            return MissingError(printed.splitlines()[0][:300])
        return UnavailableError(f"the helper failed with exit code {code}")
