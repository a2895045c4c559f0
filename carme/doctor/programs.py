"""Programs and addresses that checks ask, each with a time limit."""

import base64
import grp
import http.client
import os
import pwd
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from carme.errors import UnavailableError
from carme.helper.program import MIN_UID
from carme.system.programs import execute

_SECONDS = 12.0
_HTTP_SECONDS = 5.0
_MOST_BYTES = 8 * 2**20
_PREFIX = re.compile(r"^(?:[\w-]+: )?(?:error|fatal): ", re.IGNORECASE)


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of what it said is wrong."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        last = _PREFIX.sub("", lines[-1].strip()) if lines else ""
        return last or f"exit code {self.code}"


def call(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> ProgramResult:
    """Run a program to its end, in `/`, so that it needs no right to the current folder."""
    result = execute(argv, stdin=stdin, env=env, timeout_seconds=seconds, cwd="/")
    return ProgramResult(result.returncode, result.stdout, result.stderr)


def output(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> str:
    """What a program prints; its failure is an error with its last line."""
    done = call(argv, stdin=stdin, env=env, seconds=seconds)
    if done.code:
        raise UnavailableError(f"{Path(argv[0]).name}: {done.last}")
    return done.out


def as_user(user: str, argv: Sequence[str | Path]) -> list[str | Path]:
    """The command as another user; only root can run it."""
    return ["runuser", "-u", user, "--", *argv]


@dataclass(frozen=True)
class HttpAnswer:
    """What an address answered; a refusal is an answer, too."""

    status: int
    headers: Message
    body: bytes


def get(
    url: str, login: tuple[str, str] | None = None, seconds: float = _HTTP_SECONDS
) -> HttpAnswer:
    """The answer of one of our own addresses; UnavailableError when there is none."""
    request = urllib.request.Request(url)  # noqa: S310 (our own addresses)
    if login:
        word = base64.b64encode(":".join(login).encode()).decode()
        request.add_header("Authorization", f"Basic {word}")
    # Whether it answers is the question; whether browsers trust it, the certificate's check's.
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), _NoRedirect, urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=seconds) as answer:
            return HttpAnswer(answer.status, answer.headers, answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.headers, error.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url} does not answer: {_why(error)}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError | socket.timeout):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.errno and not isinstance(reason, ssl.SSLError):
        return os.strerror(reason.errno) if reason.errno > 0 else str(reason.strerror)
    return str(reason) or type(reason).__name__


def person_in(group: str) -> str:
    """A member of the group to run a check as: not a system user; empty if there is none."""
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return ""
    for name in entry.gr_mem:
        try:
            if pwd.getpwnam(name).pw_uid >= MIN_UID:
                return name
        except KeyError:
            continue  # a member who exists on other machines only
    primary = (user.pw_name for user in pwd.getpwall() if user.pw_gid == entry.gr_gid)
    return next(primary, "")
