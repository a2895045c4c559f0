"""The hub's side of `carme-helper`: one coroutine a verb, each run as the user through sudo."""

import asyncio
import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
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
from carme.helper.models import (
    LOG_FILE,
    VERBS,
    ExtendReply,
    HelperReply,
    ImageReply,
    SubmitReply,
    TailReply,
)
from carme.validation import explain_first

log = logging.getLogger(__name__)
Reply = TypeVar("Reply", bound=HelperReply)
_MAX_ANSWER_BYTES = 2**20
_AT_ONCE = 8
"""Helpers that run at the same time; one takes 0.3 s, and fifty would slow each other down."""


@cache
def _pool(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, f"carme-helper-{name}")


@dataclass(frozen=True)
class HelperClient:
    """Runs the helper at `helper` with the configuration `config_path` as the user of each call."""

    helper: Path
    config_path: Path
    sudo: Sequence[str] = ("sudo", "-n")
    timeout_seconds: float = 75

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
        # hub's event loop. Images have their own threads, so that a slow one delays no submission.
        pool = _pool("check-image" if verb == "check-image" else "job")
        code, out, err = await asyncio.get_running_loop().run_in_executor(
            pool, self._run_program, argv, request.model_dump_json().encode()
        )
        try:
            value = json.loads(out)
        except ValueError:
            raise self._sudo_failure(user, code, err) from None
        if failure := error_from_json(value):
            raise failure
        try:
            return reply.model_validate(value)
        except ValidationError:
            raise UnavailableError(f"the helper's answer to {verb} cannot be read") from None

    def _run_program(self, argv: Sequence[str], text: bytes) -> tuple[int, bytes, bytes]:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/")
        except FileNotFoundError:
            raise MissingError(f"no program {argv[0]}", "install sudo") from None
        except OSError as error:
            raise UnavailableError(f"{argv[0]} could not be run: {error.strerror}") from error
        try:
            out, err = process.communicate(text, timeout=self.timeout_seconds)
        except subprocess.TimeoutExpired:
            _leave_alone(process)
            raise UnavailableError(
                f"the helper did not answer within {self.timeout_seconds:g} s"
            ) from None
        if len(out) > _MAX_ANSWER_BYTES:
            raise UnavailableError("the helper's answer is too long")
        return process.returncode, out, err

    @staticmethod
    def _sudo_failure(user: str, code: int, err: bytes) -> CarmeError:
        printed = err.decode("utf-8", "replace").strip()
        log.warning("the helper for %s ended with %d: %s", user, code, printed[-2000:])
        if "password is required" in printed or "not allowed" in printed:
            return DeniedError(
                f"sudo does not let the hub act for {user}",
                "is the user in the users group, and the sudo rule in place?",
            )
        if "command not found" in printed or "unknown user" in printed:
            return MissingError(printed.splitlines()[0][:300])
        return UnavailableError(f"the helper failed with exit code {code}")


def _leave_alone(process: "subprocess.Popen[bytes]") -> None:
    """Stop waiting for the process. The hub cannot kill sudo, which runs as root, and nobody can
    kill a process that hangs on a file system. The helper has a time limit of its own."""
    with suppress(PermissionError):
        process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with suppress(BrokenPipeError):
                stream.close()
    Thread(target=process.wait, name="carme-helper-late", daemon=True).start()
